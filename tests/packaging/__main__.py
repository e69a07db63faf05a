# SPDX-License-Identifier: Apache-2.0
"""python -m tests.packaging [PYTHON ...]: build the sdist and its wheel, install it with each extra, use it.

Each Python is a path or a name on PATH; one that is not there is skipped. Without Mininet, Python's workers sum in a
testbed of this clone. Exit status 1 if something does not work or is left behind. Needs root, for the switch and the
testbed.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.packaging import checks
from tests.packaging.installation import PYTHON, CheckError, Installation, Workplace

_VERSION = "import platform; print(platform.python_version())"

Say = Callable[[str, str], None]


def pythons(wanted: Sequence[str], say: Say) -> Iterator[tuple[str, str]]:
    """The interpreters that are there, and their versions. Each version once."""
    seen: set[str] = set()
    for name in wanted:
        path = shutil.which(name)
        done = path and subprocess.run([path, "-c", _VERSION], capture_output=True, text=True, check=False)
        if not path or not done or done.returncode:  # pyenv has names of interpreters that do not start
            say(name, "SKIPPED: there is no such interpreter")
        elif (version := done.stdout.strip()) in seen:
            say(name, f"SKIPPED: Python {version} has been tried under another name")
        else:
            seen.add(version)
            yield path, version


def try_python(place: Workplace, sdist: Path, python: str, version: str, say: Say) -> None:
    """Build the wheel with a Python, install it with each extra, and use it."""
    wheel = place.build(sdist, python)
    say(f"Python {version}: wheel", checks.content(wheel))
    base = place.install(wheel, "", python)
    say("inagg", checks.base(base, wheel))
    base.remove()
    worker = place.install(wheel, "worker", python)
    say("inagg[worker]", checks.worker(worker))
    wire = place.install(wheel, "wire", python)
    say("inagg[wire]", checks.wire(wire))
    wire.remove()
    server = place.install(wheel, "server", python)
    say("inagg[server]", checks.server(server))
    server.remove()
    switch = place.install(wheel, "switch", python)
    say("inagg[switch]", checks.switch(switch))
    controller = place.install(wheel, "controller", python)
    say("inagg[controller]", checks.controller(controller, switch))
    controller.remove()
    switch.remove()
    has_mininet = subprocess.run([python, "-c", "import mininet.node"], capture_output=True, check=False)
    if has_mininet.returncode:
        say("inagg[testbed]", f"SKIPPED: {python} cannot import Mininet, which belongs to {PYTHON}")
        say("inagg[worker]", checks.worker_sums(Installation(place, Path(sys.prefix)), worker))
    else:
        launcher = place.install(wheel, "testbed", python, system_packages=True)
        say("inagg[testbed]", checks.testbed(launcher, worker))
        launcher.remove()
    worker.remove()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.packaging", description=__doc__)
    parser.add_argument("pythons", nargs="*", default=[PYTHON], metavar="PYTHON")
    began, tried = time.monotonic(), 0

    def say(what: str, seen: str) -> None:
        print(f"{time.monotonic() - began:4.0f} s  {what}: {seen}", flush=True)

    try:
        with Workplace.open() as place:
            sdist = place.build_sdist()
            for python, version in pythons(parser.parse_args().pythons, say):
                try_python(place, sdist, python, version, say)
                tried += 1
    except CheckError as error:
        print(f"wheel-test: {error}", file=sys.stderr)
        return 1
    if not tried:
        print("wheel-test: none of these interpreters is there", file=sys.stderr)
        return 1
    say("end", "no process, testbed or temporary file is left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
