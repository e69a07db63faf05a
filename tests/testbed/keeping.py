# SPDX-License-Identifier: Apache-2.0
"""Testbeds that `inagg up` or `inagg run` keeps, in a process of its own."""

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inagg_testbed.network.lifecycle import manifests, tagged_processes

INAGG = (sys.executable, "-m", "inagg_testbed")


@dataclass
class Up:
    """A testbed that `inagg up` keeps, and what it printed."""

    run: str
    keeper: "subprocess.Popen[str]"
    lines: list[str]

    def hint(self, name: str) -> list[str]:
        """The command behind a hint."""
        (line,) = (line for line in self.lines if line.strip().startswith(name))
        return shlex.split(line.partition(":")[2].partition(", or")[0])


def bring_up(folder: Path, *options: str) -> Up:
    keeper = subprocess.Popen(
        [*INAGG, "up", "--results", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert keeper.stdout is not None
    lines: list[str] = []
    while not (lines and lines[-1].strip().startswith("logs:")):
        lines.append(keeper.stdout.readline())
        assert lines[-1], "".join(lines)
    return Up(next(line.split()[1] for line in lines if "is up" in line), keeper, lines)


def take_down(testbed: Up) -> None:
    testbed.keeper.send_signal(signal.SIGTERM)
    testbed.keeper.communicate(timeout=60)
    assert tagged_processes(testbed.run, besides=0) == []
    assert testbed.run not in manifests()


@contextmanager
def endless_run(folder: Path, workers: int) -> Iterator["subprocess.Popen[str]"]:
    """`inagg run` of a script that does not end, over bridges. Each rank prints "begun"."""
    command = [*INAGG, "run", "--workers", str(workers), "--switch", "bridge", "--results", str(folder)]
    process = subprocess.Popen(
        [*command, "sh", "-c", "echo begun; exec sleep 1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)
