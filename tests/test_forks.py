# SPDX-License-Identifier: Apache-2.0
"""What is forked instead of started is what would have been started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT, forks
from tests.waiting import wait_until

MODULES = ("json",)
SAY = """
import json, os, sys
seen = [os.getcwd(), len(os.environ["LONG"]), sys.argv, len(os.listdir("/proc/self/fd")), "json" in sys.modules]
print(json.dumps(seen))
print("and an error", file=sys.stderr)
sys.exit(3)
"""


def test_a_program_has_its_pipes_folder_environment_and_no_other_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    long = {"LONG": "x" * 100_000, "LONGER": "y" * 120_000, "LONGEST": "z" * 120_000}
    command = (sys.executable, "-c", SAY, "a word")
    process = forks.start_piped(*command, modules=MODULES, environment=os.environ | long)
    output, errors = process.communicate(timeout=20)
    # 0, 1, 2 and that of the list of descriptors
    assert json.loads(output) == [str(tmp_path), 100_000, ["-c", "a word"], 4, True]
    assert (errors, process.returncode) == ("and an error\n", 3)


def test_a_program_that_does_not_end_can_be_killed_and_read_after_a_time_out(tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    program = f"import time; print('here', flush=True); open({str(printed)!r}, 'w'); time.sleep(1000)"
    process = forks.start_piped(sys.executable, "-c", program, modules=MODULES)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.1)
    wait_until(printed.exists, "the program has printed")
    process.kill()
    assert process.communicate(timeout=20) == ("here\n", "")
    assert process.returncode == -9


def runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_end_of_the_tests_waits_for_no_program_and_leaves_none() -> None:
    """A program and its child outlive a time-out, and the interpreter of the tests ends."""
    program = "import os, time; os.fork(); os.write(1, b'%d\\n' % os.getpid()); time.sleep(1000)"
    tests = f"""
import subprocess, sys
from tests import ROOT, forks
from tests.waiting import wait_until
process = forks.start_piped(sys.executable, "-c", {program!r}, modules=("json",))
for _ in range(2):
    print(process.stdout.readline(), end="", flush=True)
try:
    process.communicate(timeout=0.1)
except subprocess.TimeoutExpired:
    print("a time-out")
"""
    done = subprocess.run(
        [sys.executable, "-c", tests], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    *pids, told = done.stdout.split("\n", 2)
    assert (told, done.stderr) == ("a time-out\n", "")
    wait_until(lambda: not any(runs(pid) for pid in pids), "the program and its child have ended")
