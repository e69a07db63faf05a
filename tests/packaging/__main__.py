# SPDX-License-Identifier: Apache-2.0
"""python -m tests.packaging: build the sdist and its wheel, install it with each extra, use it. Exit status 1 if
something does not work or is left behind. Needs root, for the switch and the testbed."""

import sys
import time

from tests.packaging import checks
from tests.packaging.installation import CheckError, Workplace


def main() -> int:
    began = time.monotonic()

    def say(what: str, seen: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {what}: {seen}", flush=True)

    try:
        with Workplace.open() as place:
            wheel = place.build()
            say("wheel", checks.content(wheel))
            worker = place.install(wheel, "")
            say("inagg", checks.base(worker))
            switch = place.install(wheel, "switch")
            say("inagg[switch]", checks.switch(switch))
            controller = place.install(wheel, "controller")
            say("inagg[controller]", checks.controller(controller, switch))
            launcher = place.install(wheel, "testbed", system_packages=True)
            say("inagg[testbed]", checks.testbed(launcher, worker))
    except CheckError as error:
        print(f"wheel-test: {error}", file=sys.stderr)
        return 1
    say("end", "no process, testbed or temporary file is left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
