# SPDX-License-Identifier: Apache-2.0
"""`inagg bench jobs` on a network, with a pool that is large enough for one of two jobs."""

import json
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inagg_testbed.cli.main import app

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]


def test_jobs_that_get_no_slots_sum_with_gloo_or_wait_and_all_sums_are_right(tmp_path: Path) -> None:
    figures, plot = tmp_path / "jobs.json", tmp_path / "jobs.png"
    options = ["--jobs", "2", "--workers", "2", "--slots", "2", "--pool", "2", "--skew", "1"]
    options += ["--elements", "2000", "--link", "unshaped", "--seconds", "0.2"]
    files = ["--json", str(figures), "--plot", str(plot), "--results", str(tmp_path / "results")]
    done = CliRunner().invoke(app, ["bench", "jobs", *options, *files])
    assert done.exit_code == 0, done.output
    found = json.loads(figures.read_text())
    assert [
        (row["policy"], job["sums_by"], job["slots"]) for row in found["rows"] for job in row["jobs"]
    ] == [
        ("leased", ["switch"], [2]),
        ("leased", ["gloo"], [None]),
        ("queued", ["switch"], [2]),
        ("queued", ["switch"], [2]),
        ("shared", ["switch"], [2]),
        ("shared", ["switch"], [2]),
        ("priority", ["switch"], [2]),
        ("priority", ["switch"], [2]),
        ("server", ["server"], [2]),
        ("server", ["server"], [2]),
    ]
    sums = [[[phase["sums"] for phase in job["phases"]] for job in run["jobs"]] for run in found["runs"]]
    assert all(each == sums[0] for each in sums)  # the same schedules for all policies
    assert all(row["goodput_MBps"] > 0 and 0.5 <= row["jain"] <= 1 for row in found["rows"])
    assert all(row["ratios"][row["policy"]] == 1 for row in found["rows"])
    leased, queued, shared, *_, server = found["rows"]
    assert [job["in_switch"] for row in (leased, queued, server) for job in row["jobs"]] == [1, 0, 1, 1, 0, 0]
    assert [job["in_switch"] for job in shared["jobs"]] == [0, 0]  # of two workers
    first, second = queued["jobs"]
    assert first["waited_s"] == 0
    assert second["waited_s"] > first["completion_s"]  # one lease at a time
    assert [job["waited_s"] for row in (leased, shared, server) for job in row["jobs"]] == [0] * 6
    assert (found["settings"]["pool"], found["settings"]["seed"]) == (2, 0)
    assert found["settings"]["inagg"] == metadata.version("inagg")
    assert plot.exists()
    assert "leased, 1" in done.output
