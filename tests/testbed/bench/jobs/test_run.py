# SPDX-License-Identifier: Apache-2.0
"""A run of several jobs, from the events of their workers, and the workers' own check. No worker is started."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from inagg_testbed.bench.jobs.plan import JobsBench
from inagg_testbed.bench.jobs.run import Run
from inagg_testbed.bench.jobs.schedule import Phase
from inagg_testbed.bench.jobs.worker import Sums
from inagg_testbed.errors import WrongResultError

BENCH = JobsBench(jobs=2, workers=2, elements=1000)
GRANTED = {7: 32}  # slots, by the controller's number of a job


def made_run(folder: Path) -> Run:
    """A run of two jobs with one phase of four all-reduces each."""
    testbed = SimpleNamespace(
        run=SimpleNamespace(temporary_folder=lambda: folder),
        controller=SimpleNamespace(job=lambda number: SimpleNamespace(slots=GRANTED[number])),
    )
    return Run(BENCH, cast("Any", testbed), "round0", "leased", [(Phase(0.5, 4),)] * 2)


def ready(number: int | None, path: str) -> dict[str, Any]:
    return {"event": "ready", "job": number, "path": path, "wrong": 0}


def make_ready(run: Run) -> None:
    """Job 0 has got slots, job 1 none."""
    for job, event in enumerate([ready(7, "switch"), ready(None, "inner")]):
        for rank in (0, 1):
            run.note(job, rank, event)


def test_jobs_join_one_after_another_and_start_together(tmp_path: Path) -> None:
    run = made_run(tmp_path)
    run.note(0, 1, ready(7, "switch"))
    assert list(tmp_path.iterdir()) == []
    run.note(0, 0, ready(7, "switch"))
    assert [path.name for path in tmp_path.iterdir()] == ["job1"]
    run.note(1, 0, ready(None, "inner"))
    run.note(1, 1, ready(None, "inner"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job1", "start"]


def test_a_phase_lasts_from_the_first_ranks_beginning_to_the_last_ranks_end(tmp_path: Path) -> None:
    run = made_run(tmp_path)
    make_ready(run)
    for job, (began, ended) in enumerate([(100.0, 102.0), (200.0, 201.0)]):
        for rank in (0, 1):
            times = {"began": began + 0.25 * rank, "ended": ended + 0.5 * rank, "wrong": 0}
            run.note(job, rank, {"event": "phase", **times})
    first, second = run.outcomes([0.5, 1.0])
    assert [(phase.sums, phase.seconds) for job in (first, second) for phase in job.phases] == [
        (4, 2.5),
        (4, 1.5),
    ]
    assert (first.slowdowns, second.slowdowns) == ([1.25], [0.375])
    assert (first.sums_by, first.slots, second.sums_by, second.slots) == ("switch", 32, "gloo", None)
    assert second.phases[0].began_s - first.phases[0].began_s == pytest.approx(100.0)


def test_a_wrong_sum_is_an_error_that_names_job_and_rank(tmp_path: Path) -> None:
    run = made_run(tmp_path)
    make_ready(run)
    with pytest.raises(WrongResultError, match="round0, job 1, rank 0: 3 sums are not the exact ones"):
        run.note(1, 0, {"event": "phase", "began": 1.0, "ended": 2.0, "wrong": 3})


@pytest.mark.parametrize(("damage", "right"), [(0.0, True), (1.0, False)])
def test_a_worker_compares_every_element(monkeypatch: pytest.MonkeyPatch, damage: float, right: bool) -> None:
    def all_reduce(tensor: torch.Tensor) -> None:  # of ranks 0 and 1, on rank 0
        tensor.mul_(3)
        tensor[-1] += damage

    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    sums = Sums(1000)
    assert [sums.do() for _ in range(9)] == [right] * 9


def test_a_result_of_the_sum_before_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[torch.Tensor] = []

    def all_reduce(tensor: torch.Tensor) -> None:
        results.append(tensor * 3)
        tensor.copy_(results[0])

    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    sums = Sums(1000)
    assert [sums.do() for _ in range(3)] == [True, False, False]
