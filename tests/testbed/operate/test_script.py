# SPDX-License-Identifier: Apache-2.0
"""`inagg run` exits with the script's status. Services that end early, and full disks, cause warnings."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inagg_testbed.network.lifecycle import manifests, tagged_processes
from tests.testbed.keeping import endless_run
from tests.waiting import BUSY_S

pytestmark = pytest.mark.netns

# Kills a service of its testbed, which it finds in the run's manifest.
KILL = """
import json, os, signal, sys
manifest = json.load(open(f"/run/inagg/{os.environ['INAGG_RUN']}.json"))
if os.environ["RANK"] == "0":
    (pid,) = [each["pid"] for each in manifest["processes"] if each["name"] == sys.argv[1]]
    os.kill(pid, signal.SIGKILL)
    print("weights", flush=True)
"""


def run(*options: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "inagg_testbed", "run", "--workers", "2", "--link", "unshaped"]
    done = subprocess.run(
        [*command, "--results", str(folder), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "COLUMNS": "100"},
    )
    (name,) = [path.name.rpartition("-")[2] for path in folder.glob("2*-*")] or [""]
    assert not name or tagged_processes(name, besides=0) == []
    assert name not in manifests()
    return done


@pytest.mark.parametrize("service", ["controller", "switch"])
def test_a_script_that_ends_well_without_a_service_has_succeeded(tmp_path: Path, service: str) -> None:
    done = run(sys.executable, "-c", KILL, service, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "weights" in done.stdout
    assert "Traceback" not in done.stderr
    assert "no counters.json: " in done.stderr


def test_a_service_that_ends_in_mid_run_is_told_at_once_and_status_knows(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    script = (
        KILL + f"import pathlib, time\nwhile not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.05)\n"
    )
    command = [
        sys.executable,
        "-m",
        "inagg_testbed",
        "run",
        "--workers",
        "2",
        "--results",
        str(tmp_path / "r"),
    ]
    process = subprocess.Popen(
        [*command, sys.executable, "-c", script, "controller"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert "the controller ended with signal SIGKILL; its log is " in line
        (name,) = [path.name.rpartition("-")[2] for path in (tmp_path / "r").glob("2*-*")]
        status = subprocess.run(
            [sys.executable, "-m", "inagg_testbed", "status", "--run", name, "--interval", "0.1"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert status.returncode == 1
        assert "! the controller has ended" in status.stdout
        assert "Traceback" not in status.stderr
    finally:
        go_on.touch()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_script_that_fails_without_the_switch_is_a_failure(tmp_path: Path) -> None:
    done = run(sys.executable, "-c", KILL + "sys.exit(3)", "switch", folder=tmp_path)
    assert done.returncode == 1
    assert "rank 0 ended with exit status 3" in done.stderr


@pytest.mark.long
def test_a_script_that_hangs_without_the_switch_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    done = run(sys.executable, "-c", KILL + "signal.pause()", "switch", folder=tmp_path)
    assert done.returncode == 1
    assert "inagg: for 40 s no switch has run" in done.stderr
    assert time.monotonic() - began < 60 + BUSY_S


def test_a_rank_that_is_killed_before_it_makes_a_group_ends_the_others(tmp_path: Path) -> None:
    """They wait for it in init_process_group, for as long as the group's timeout."""
    waits, killed = tmp_path / "waits", tmp_path / "killed"
    script = f"""
import os, pathlib, signal, time
if os.environ["RANK"] == "0":
    pathlib.Path({str(waits)!r}).write_text(str(os.getpid()))
    import torch.distributed
    torch.distributed.init_process_group("inagg")
while not pathlib.Path({str(waits)!r}).exists():
    time.sleep(0.01)
pathlib.Path({str(killed)!r}).write_text(str(time.time()))
os.kill(os.getpid(), signal.SIGKILL)
"""
    with ThreadPoolExecutor(1) as other:
        running = other.submit(run, sys.executable, "-c", script, folder=tmp_path / "results")
        while not killed.exists() and not running.done():
            time.sleep(0.01)
        select.select([os.pidfd_open(int(waits.read_text()))], [], [], 60)
        assert time.time() - float(killed.read_text()) < 10 + BUSY_S
        done = running.result()
    assert done.returncode == 1
    assert "rank 1 ended with signal SIGKILL" in done.stderr
    assert "rank 0 did not notice the failure and was ended" in done.stderr


def test_a_full_disk_for_results_is_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    fill = f'echo weights; [ "$RANK" = 1 ] || dd if=/dev/zero of={folder}/fill bs=64k 2>/dev/null; true'
    inside = f'mount -t tmpfs -o size=8m results {folder}; exec "$@"'
    command = [sys.executable, "-m", "inagg_testbed", "run", "--workers", "2", "--link", "unshaped"]
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-ec",
            inside,
            "sh",
            *command,
            "--results",
            str(folder),
            "sh",
            "-c",
            fill,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "weights" in done.stdout
    assert re.search(r"no counters\.json: .*No space left on device", done.stderr)
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_a_run(tmp_path: Path) -> None:
    with endless_run(tmp_path, workers=1) as process:
        assert process.stdout is not None
        while "begun" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert complaint == "inagg: stopped by SIGINT; everything has been taken down\n"
