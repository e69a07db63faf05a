# SPDX-License-Identifier: Apache-2.0
"""A run of several jobs, from the events of their workers, and the workers' own check. No worker is started."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from inagg_contract.documents import Chunks
from inagg_testbed.bench.jobs.plan import JobsBench
from inagg_testbed.bench.jobs.run import Run
from inagg_testbed.bench.jobs.schedule import Phase
from inagg_testbed.bench.jobs.worker import Sums
from inagg_testbed.errors import WrongResultError

BENCH = JobsBench(jobs=2, workers=2, elements=1000)
NUMBER = 7  # of a job at the controller


class Controller:
    """chunks: of each job that it has, by number, now; None in leased slots."""

    def __init__(self, chunks: dict[int, Chunks | None] | None = None) -> None:
        self.chunks: dict[int, Chunks | None] = chunks or {NUMBER: None}
        self.finished: set[int] = set()

    def job(self, number: int) -> Any:
        state = "finished" if number in self.finished else "running"
        return SimpleNamespace(id=number, slots=32, chunks=self.chunks[number], state=state)


def made_run(folder: Path, policy: str = "leased", controller: Controller | None = None) -> Run:
    """A run of two jobs with one phase of four all-reduces each."""
    testbed = SimpleNamespace(
        run=SimpleNamespace(temporary_folder=lambda: folder),
        controller=controller or Controller(),
    )
    return Run(BENCH, cast("Any", testbed), "round0", policy, [(Phase(0.5, 4),)] * 2)


def ready(number: int | None, path: str, at: float = 0.0) -> dict[str, Any]:
    return {"event": "ready", "job": number, "path": path, "at": at, "wrong": 0}


def phase(began: float, ended: float) -> dict[str, Any]:
    return {"event": "phase", "began": began, "ended": ended, "wrong": 0}


def make_ready(run: Run) -> None:
    """Job 0 has got slots, job 1 none."""
    for job, event in enumerate([ready(NUMBER, "switch"), ready(None, "inner")]):
        for rank in (0, 1):
            run.note(job, rank, event)


def test_jobs_join_one_after_another_and_start_together(tmp_path: Path) -> None:
    run = made_run(tmp_path)
    run.note(0, 1, ready(NUMBER, "switch"))
    assert list(tmp_path.iterdir()) == []
    run.note(0, 0, ready(NUMBER, "switch"))
    assert [path.name for path in tmp_path.iterdir()] == ["job1"]
    run.note(1, 0, ready(None, "inner"))
    run.note(1, 1, ready(None, "inner"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job1", "start"]


def test_a_phase_lasts_from_the_first_ranks_beginning_to_the_last_ranks_end(tmp_path: Path) -> None:
    run = made_run(tmp_path)
    make_ready(run)
    for job, (began, ended) in enumerate([(100.0, 102.0), (200.0, 201.0)]):
        for rank in (0, 1):
            run.note(job, rank, phase(began + 0.25 * rank, ended + 0.5 * rank))
    run.look_at_ended_jobs()
    first, second = run.outcomes([0.5, 1.0])
    assert [(phase.sums, phase.seconds) for job in (first, second) for phase in job.phases] == [
        (4, 2.5),
        (4, 1.5),
    ]
    assert (first.slowdowns, second.slowdowns) == ([1.25], [0.375])
    assert (first.sums_by, first.slots, second.sums_by, second.slots) == ("switch", 32, "gloo", None)
    assert (first.in_switch, second.in_switch) == (1.0, 0.0)
    assert second.phases[0].began_s - first.phases[0].began_s == pytest.approx(100.0)


def test_the_first_queued_job_starts_and_each_other_one_waits_when_the_one_before_has_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inagg_testbed.bench.jobs.run.time.monotonic", lambda: 10.0)
    run = made_run(tmp_path, "queued")
    for rank in (0, 1):
        run.note(0, rank, ready(NUMBER, "switch", at=9.5))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job1", "start"]
    for rank in (0, 1):
        run.note(0, rank, phase(11.0, 15.0))
    for rank, at in enumerate((16.0, 17.0)):
        run.note(1, rank, ready(NUMBER, "switch", at=at))
        run.note(1, rank, phase(18.0, 21.0))
    run.look_at_ended_jobs()
    first, second = run.outcomes([0.5, 0.5])
    assert (first.waited_s, first.completion_s) == (0.0, 5.0)
    assert (second.waited_s, second.completion_s) == (7.0, 11.0)
    per_second = 4 * BENCH.elements * 4  # four all-reduces
    assert (first.goodput(BENCH.elements), second.goodput(BENCH.elements)) == (
        per_second / 4,
        per_second / (7 + 3),
    )


def test_the_share_summed_in_the_switch_is_that_of_the_jobs_chunks_in_the_end(tmp_path: Path) -> None:
    nothing = Chunks(switches=0, both=0, servers=0)
    controller = Controller({NUMBER: nothing, NUMBER + 1: nothing})
    run = made_run(tmp_path, "shared", controller)
    for job in (0, 1):
        for rank in (0, 1):
            run.note(job, rank, ready(NUMBER + job, "switch"))
    for job in (0, 1):
        for rank in (0, 1):
            run.note(job, rank, phase(1.0, 2.0))
    controller.chunks = {
        NUMBER: Chunks(switches=6, both=1, servers=1),
        NUMBER + 1: Chunks(switches=0, both=0, servers=8),
    }
    run.look_at_ended_jobs()
    assert [job.in_switch for job in run.outcomes([0.5, 0.5])] == [0.75, 0.0]


def test_what_a_job_has_done_is_asked_for_before_the_controller_forgets_it(tmp_path: Path) -> None:
    controller = Controller({NUMBER: Chunks(switches=3, both=1, servers=0), NUMBER + 1: None})
    run = made_run(tmp_path, "queued", controller)
    for job in (0, 1):
        for rank in (0, 1):
            run.note(job, rank, ready(NUMBER + job, "switch"))
    for rank in (0, 1):
        run.note(0, rank, phase(1.0, 2.0))
    controller.finished.add(NUMBER)
    run.note(1, 0, phase(3.0, 4.0))
    del controller.chunks[NUMBER]
    run.note(1, 1, phase(3.0, 4.0))
    run.look_at_ended_jobs()
    assert run.outcomes([0.5, 0.5])[0].in_switch == 0.75


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
