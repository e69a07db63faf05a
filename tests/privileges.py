# SPDX-License-Identifier: Apache-2.0
"""Commands that run without root's privileges, as systemd's units run them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_NOBODY = 65534
# The clone and its interpreter may be in a folder that only its owner may enter. It permits no writing.
_READS_THE_CLONE = "dac_read_search"


@contextmanager
def home_of_nobody() -> Iterator[Path]:
    """A folder of the user nobody, which pytest's folders are not: only their owner may enter them."""
    with TemporaryDirectory(prefix="inagg-") as folder:
        os.chown(folder, _NOBODY, _NOBODY)
        yield Path(folder)


def as_nobody(home: Path, *capabilities: str) -> list[str]:
    """The beginning of a command line that runs the rest as the user nobody.

    home: a folder of that user, for all that the command keeps. capabilities: such as "net_raw".
    """
    kept = ",".join(f"+{name}" for name in (_READS_THE_CLONE, *capabilities))
    sets = [f"--{kind}-caps=-all,{kept}" for kind in ("inh", "ambient")]
    identity = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--no-new-privs"]
    variables = [f"{name}={home}" for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "TMPDIR")]
    # The sets change with the user, so the bounding set has to keep them.
    return ["setpriv", *identity, *sets, f"--bounding-set=-all,{kept}", "env", *variables]


def capabilities_of(process: int) -> dict[str, set[int]]:
    """The numbers of the capabilities that any thread of a process has, by set, and its no_new_privs flags."""
    found: dict[str, set[int]] = {}
    for status in Path(f"/proc/{process}/task").glob("*/status"):
        for line in status.read_text().splitlines():
            name, _, value = line.partition(":\t")
            if name.startswith("Cap"):
                bits = int(value, 16)
                found.setdefault(name, set()).update(bit for bit in range(64) if bits >> bit & 1)
            elif name == "NoNewPrivs":
                found.setdefault(name, set()).add(int(value))
    return found


def user_of(process: int) -> int:
    """The user id of a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Uid"))
