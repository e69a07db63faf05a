# SPDX-License-Identifier: Apache-2.0
"""python -m tests.packaging.torch_matrix 2.7.1 2.15.0: the host library's tests with other releases of torch.

One virtual environment at a time has a release of torch, the packages of constraints.txt and the wheel of this clone.
The wheel serves all releases, because its native modules do not use torch. pip takes torch's CPU build where its index
has one; PyPI has only the CUDA build for x86-64 (5 GB a release, while its tests run). A release that is too old must
be refused. A Python that has no Mininet borrows that of the system's Python.

Logs and JUnit files: results/torch-matrix/. Exit status 1 if a release fails. Needs root, for network namespaces.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from inagg.torch_versions import OLDEST, release
from tests import ROOT
from tests.packaging.installation import PYTHON

# All that runs with torch: `native` tests the C++ core, which knows no torch.
TESTS = ["tests/hostlib", "--ignore=tests/hostlib/native"]
INSTALLATION_TIMEOUT_S, TESTS_TIMEOUT_S = 1800.0, 3600.0
# As in the Makefile: tests on real networks have real time-outs.
_TWO_AT_A_TIME = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
_BUILD, _RESULTS = ROOT / "build" / "torch-matrix", ROOT / "results" / "torch-matrix"

_MAKE_A_GROUP = """
import torch.distributed as dist
dist.init_process_group("inagg", store=dist.HashStore(), rank=0, world_size=1)
"""
_MININET = "import mininet; print(mininet.__path__[0])"


@dataclass(frozen=True)
class Row:
    """What came of a release.

    build: torch's own version, such as "2.11.0+cu130"; "" if it could not be installed. passed, failed, skipped: tests.
    again: those of `passed` that failed first and passed when they ran again, one after the other: on a busy machine,
    tests of time-outs do. problem: what went wrong besides; "" if nothing did.
    """

    torch: str
    build: str = ""
    passed: int = 0
    again: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    problem: str = ""
    refused: bool = False

    @property
    def good(self) -> bool:
        return self.refused or (not self.problem and not self.failed and self.passed > 0)

    @property
    def outcome(self) -> str:
        return self.problem or ("refused, as it must be" if self.refused else "ok" if self.good else "FAILED")


def table(rows: Sequence[Row]) -> str:
    lines = [
        f"{'torch':<8} {'build':<16} {'passed':>6} {'again':>5} {'failed':>6} {'skipped':>7} {'min':>4}  outcome"
    ]
    for row in rows:
        lines.append(
            f"{row.torch:<8} {row.build:<16} {row.passed:>6} {row.again:>5} {row.failed:>6} {row.skipped:>7} "
            f"{row.seconds / 60:>4.0f}  {row.outcome}"
        )
    return "\n".join(lines)


def counts(junit: Path) -> tuple[int, int, int]:
    """Tests that passed, failed and were skipped, from a JUnit file.

    A test that fails, and whose fixture then fails, counts twice.
    """
    suites = list(ElementTree.parse(junit).getroot().iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(name, "0")) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    )
    return total - failures - errors - skipped, failures + errors, skipped


def requirements_without_torch() -> tuple[list[str], list[str]]:
    """What the tests need besides torch, and constraints.txt without torch and Triton, whose release torch chooses."""
    listed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "requirements.py", ROOT / "pyproject.toml"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    return [one for one in listed if not one.startswith("torch>")], [
        one for one in constraints if not one.startswith(("torch==", "triton=="))
    ]


def build_wheel(python: str) -> Path:
    builder, folder = _BUILD / "builder", _BUILD / "wheel"
    subprocess.run([python, "-m", "venv", builder], check=True)
    command = [str(builder / "bin" / "python"), "-m", "pip", "wheel", "--quiet", "--no-deps"]
    pins = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    subprocess.run([*command, "--wheel-dir", folder, ROOT], env=os.environ | pins, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


class _Environment:
    """A virtual environment of a Python with one release of torch. Removed on exit."""

    def __init__(self, python: str, torch: str, log: IO[str]) -> None:
        self._path = _BUILD / f"torch-{torch}"
        self._base_python = python
        self._log = log
        self.python = str(self._path / "bin" / "python")

    def __enter__(self) -> "_Environment":
        self._remove()
        venv = [self._base_python, "-m", "venv", "--system-site-packages", str(self._path)]
        self.run(venv, INSTALLATION_TIMEOUT_S)
        self._borrow_mininet()
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)

    def _borrow_mininet(self) -> None:
        """Link the Mininet of the system's Python, if this one has none. Mininet is pure Python, and Debian's."""
        own, systems = (_output([python, "-c", _MININET]) for python in (self.python, PYTHON))
        if not Path(own).is_dir():
            (packages,) = self._path.glob("lib/python*/site-packages")
            (packages / "mininet").symlink_to(systems)

    def pip(self, *arguments: str | Path) -> None:
        pip = [self.python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        self.run([*pip, "install", "--no-compile", *map(str, arguments)], INSTALLATION_TIMEOUT_S)

    def run(self, command: Sequence[str], timeout_s: float, check: bool = True) -> int:
        """Run a command in the clone, with its output in the log. Returns its status."""
        self._log.write(f"$ {' '.join(command)}\n")
        self._log.flush()
        path = f"{self._path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"PATH": path},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=check,
        ).returncode

    def test(self, arguments: Sequence[str], junit: Path) -> tuple[int, int, int]:
        """Run pytest. Returns `counts`.

        Raises:
            CalledProcessError: pytest did not run all tests.
        """
        cache = f"cache_dir={self._path / 'pytest-cache'}"
        command = [self.python, "-m", "pytest", "-o", cache, f"--junitxml={junit}", *arguments]
        status = self.run(command, TESTS_TIMEOUT_S, check=False)
        if status not in (0, 1):  # 1: a test failed
            raise subprocess.CalledProcessError(status, command)
        return counts(junit)

    def output(self, program: str) -> str:
        """What a Python program prints, on stdout and stderr."""
        return _output([self.python, "-c", program])


def _output(command: Sequence[str]) -> str:
    """What a command prints, on stdout and stderr."""
    done = subprocess.run(
        command,
        cwd=_BUILD,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout.strip()


def try_release(torch: str, python: str, wheel: Path, tests: Sequence[str]) -> Row:
    """Install a release of torch and what the tests need, and run them."""
    began, log_path = time.monotonic(), _RESULTS / f"{torch}.log"
    junit, again_junit = _RESULTS / f"{torch}.xml", _RESULTS / f"{torch}-again.xml"
    for file in (junit, again_junit):
        file.unlink(missing_ok=True)
    others, pins = requirements_without_torch()
    constraints = _BUILD / "constraints.txt"
    constraints.write_text("\n".join(pins))
    with log_path.open("w") as log, _Environment(python, torch, log) as environment:
        try:
            environment.pip("--constraint", constraints, f"torch=={torch}", *others)
            environment.pip("--no-deps", wheel)
        except subprocess.SubprocessError:
            return Row(torch, problem=f"not installed, see {log_path.relative_to(ROOT)}")
        build = environment.output("import torch; print(torch.__version__)").splitlines()[-1]
        if release(torch) < OLDEST:
            said = environment.output(_MAKE_A_GROUP)
            refused = f"ConfigurationError: torch {build} is too old" in said
            log.write(said)
            return Row(torch, build, refused=refused, problem="" if refused else "not refused")
        passed, again, failed, skipped, problem = 0, 0, 0, 0, ""
        try:
            passed, failed, skipped = environment.test([*_TWO_AT_A_TIME, *tests], junit)
            if failed:
                again, failed, skipped_again = environment.test(["--last-failed", *tests], again_junit)
                passed, skipped = passed + again, skipped + skipped_again
        except subprocess.TimeoutExpired:
            problem = f"not done in {TESTS_TIMEOUT_S:g} s"
        except subprocess.CalledProcessError:
            problem = f"pytest failed, see {log_path.relative_to(ROOT)}"
    return Row(torch, build, passed, again, failed, skipped, time.monotonic() - began, problem)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.packaging.torch_matrix", description=__doc__)
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="a release of torch, such as 2.11.0")
    parser.add_argument("--python", default=PYTHON, help="with this interpreter (default: %(default)s)")
    parser.add_argument("--tests", help=f"arguments of pytest (default: {' '.join(TESTS)})")
    arguments = parser.parse_args()
    for folder in (_BUILD, _RESULTS):
        folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    try:
        wheel = build_wheel(arguments.python)
        for version in arguments.versions:
            print(f"torch {version}: installing, then testing ...", flush=True)
            tests = (arguments.tests or " ".join(TESTS)).split()
            rows.append(try_release(version, arguments.python, wheel, tests))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    finally:
        shutil.rmtree(_BUILD, ignore_errors=True)
        print(f"\n{table(rows)}")
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
