# SPDX-License-Identifier: Apache-2.0
"""Explores larger jobs with shared slots than the tests do (`make explore`; ten minutes, 6 GB of memory)."""

import time

from tests.conformance.shared_runs import Recovery, Setting

TOGETHER = {
    "3 workers, 6 chunks": Setting(((0, 1, 2),), chunks=6),
    "3 workers, 2 slots": Setting(((0, 1, 2),), chunks=4, slots=2),
    "2 jobs, 3 chunks": Setting(((0, 1),), chunks=3, jobs=2),
    "2 leaves of 2 workers below a switch": Setting((((0, 1), (2, 3)),), chunks=1),
    "2 leaves, 2 jobs": Setting(((0, 1), (2,)), chunks=2, jobs=2),
}
INTERLEAVED = {
    "3 workers": Setting(((0, 1, 2),), chunks=1),
    "2 leaves": Setting(((0, 1), (2,)), chunks=1),
    "2 workers, 2 chunks": Setting(((0, 1),), chunks=2),
}


def main() -> None:
    """Print the size of each exploration. Raises ViolationError."""
    for interleaved, settings in ((False, TOGETHER), (True, INTERLEAVED)):
        for name, setting in settings.items():
            began = time.monotonic()
            moments = Recovery(setting, interleaved=interleaved).check(setting.reach())
            crossing = ", packets of all workers cross" if interleaved else ""
            print(f"{name}{crossing}: {moments} states, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
