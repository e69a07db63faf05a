# SPDX-License-Identifier: Apache-2.0
"""What `inagg bench jobs` accepts, and what it passes to its workers."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from inagg_testbed.bench.jobs.plan import POLICIES, JobsBench, Task
from inagg_testbed.bench.jobs.schedule import Phase
from inagg_testbed.cli.main import app
from inagg_testbed.errors import ConfigurationError

BENCH = JobsBench(jobs=3, workers=4, elements=1000, skew=1.5)


def test_each_job_has_its_own_hosts() -> None:
    assert [list(BENCH.hosts_of(job)) for job in range(3)] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


def test_the_last_job_has_a_late_rank() -> None:
    assert [BENCH.lateness(job) for job in range(3)] == [0.0, 0.0, 1.5]


def test_only_queued_jobs_wait_and_only_leased_ones_fall_back_whatever_the_users_environment_says() -> None:
    chosen = {
        policy: (found["INAGG_AGGREGATION"], float(found["INAGG_WAIT_S"]) > 0, found["INAGG_FALLBACK"])
        for policy in POLICIES
        for found in [BENCH.environment(policy, 0)]
    }
    assert chosen == {
        "leased": ("leased", False, "inner"),
        "queued": ("leased", True, "error"),
        "shared": ("shared", False, "error"),
        "priority": ("shared", False, "error"),
        "server": ("server", False, "error"),
    }


def test_only_the_first_job_has_priority() -> None:
    found = [BENCH.environment(policy, job)["INAGG_PRIORITY"] for policy in POLICIES for job in (0, 1)]
    assert found == ["0", "0", "0", "0", "0", "0", "1", "0", "0", "0"]


def test_a_task_is_the_same_on_the_command_line() -> None:
    task = Task(elements=10, phases=(Phase(0.5, 3), Phase(0.0, 1)), late_s=0.25, turn="/t", start="/s")
    assert Task.from_json(task.to_json()) == task


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": 1}, "3 jobs of 1 workers: want 1 job or more, of 2 workers or more"),
        ({"jobs": 17}, "17 jobs of 4 workers need 68 hosts; a testbed has at most 64"),
        ({"policies": ("fair",)}, "policy 'fair': want leased or queued or shared or priority or server"),
        ({"policies": ("server", "server")}, "a policy is given twice"),
        ({"active": 0.0}, "jobs that sum 0 of the time: want more than 0, at most 1"),
        ({"active": 1.5}, r"jobs that sum 1\.5 of the time"),
        ({"active": float("nan")}, "jobs that sum nan of the time"),
        ({"seconds": 0.0}, "a run of 0 s"),
        ({"seconds": float("inf")}, "a run of inf s"),
        ({"skew": -1.0}, "a skew of -1"),
        ({"slots": 3}, "3 slots: want a power of two"),
    ],
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        JobsBench(**{"jobs": 3, "workers": 4, "elements": 1000, **wrong})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policy", "fair"), "policy 'fair': want leased or queued or shared or priority or server"),
        (("--jobs", "33"), "33 jobs of 2 workers need 66 hosts"),
        (("--link", "fast"), "want unshaped, or a rate such as 100mbit"),
        (("--json", "/proc/jobs.json"), "cannot write /proc/jobs.json"),
        (("--plot", "/proc/jobs.png"), "cannot write /proc/jobs.png"),
        (("--plot", "jobs.foo"), "--plot jobs.foo: the name must end in .png, .pdf, .svg"),
    ],
)
def test_a_wrong_option_is_explained_before_anything_starts(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    done = CliRunner().invoke(app, ["bench", "jobs", "--results", str(tmp_path / "results"), *options])
    assert done.exit_code == 1
    assert message in done.output
    assert not (tmp_path / "results").exists()
