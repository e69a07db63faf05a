# SPDX-License-Identifier: Apache-2.0
"""Jobs that go back to their first way once it is there again, in virtual time."""

from dataclasses import replace

import pytest

from inagg_controller.errors import ConflictError
from inagg_controller.jobs.calls import Report
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.record import Saved, record_of, record_of_member
from inagg_controller.jobs.servers import Summed
from inagg_controller.jobs.table import JobTable
from tests.controller.changes import ALL, SLOTS, freeze, go_on, running
from tests.controller.serving import LEAF_SPINE
from tests.controller.tables import POLICY, carry_out, create_leased, create_on_servers, member, new_table

AFTER_S = POLICY.return_after_s


def pass_time(
    table: JobTable, job: Job, begin: float, end: float, *, silent: frozenset[int] = frozenset()
) -> None:
    """Ranks beat twice a second, until the job does something else. silent: those whose switch does not answer."""
    for half in range(round(2 * begin), round(2 * end) + 1):
        if job.state != "running":
            break
        for rank in range(job.workers):
            table.heartbeat(job.id, rank, half / 2, Report(0, switch_silent=rank in silent))
        table.tick(half / 2)


def fall(table: JobTable, job: Job, now: float, name: str = "s1") -> None:
    """A switch dies, and the job goes on on servers."""
    table.switches.lost(name, now)
    freeze(table, job, now)
    for later in (3.0, 4.0):
        table.tick(now + later)
    go_on(table, job, now + 4)
    assert job.placement.title == "2 colocated servers"


def fallen() -> tuple[JobTable, Job]:
    """A job that has gone on on servers at 5 s, and whose switch is there again."""
    table = new_table()
    job = running(table)
    fall(table, job, 1.0)
    table.switches.connected("s1")
    return table, job


def returning() -> tuple[JobTable, Job]:
    """The same job when it begins to go back."""
    table, job = fallen()
    pass_time(table, job, 5.0, 7.0 + AFTER_S)
    assert job.state == "changing"
    return table, job


def test_a_job_returns_when_its_switch_has_been_there_for_a_while() -> None:
    table = new_table()
    job = running(table)
    first = job.placement
    fall(table, job, 1.0)
    pass_time(table, job, 5.0, 20.0)
    table.switches.connected("s1")
    pass_time(table, job, 20.0, 20.0 + AFTER_S - 1)
    assert job.state == "running"
    pass_time(table, job, 20.0 + AFTER_S - 1, 20.0 + AFTER_S + 2)
    assert job.state == "changing"
    assert job.change is not None
    assert job.change.reason == "the first way is there again"
    assert table.take_notices()[-1] == "job 1 goes back to its first way"
    go_on(table, job, 33.0)
    assert (job.placement.title, job.placement.slots) == (first.title, first.slots)
    assert job.changes == 2
    pass_time(table, job, 33.0, 60.0)
    assert job.state == "running"


def test_a_job_whose_ranks_sum_themselves_returns_and_falls_again() -> None:
    table = new_table()
    job = running(table, ("inner",))
    table.switches.lost("s1", 1.0)
    freeze(table, job, 1.0)
    table.tick(1.0)
    go_on(table, job, 1.0)
    assert job.placement.aggregation == "inner"
    table.switches.connected("s1")
    pass_time(table, job, 2.0, 4.0 + AFTER_S)
    assert job.state == "changing"
    go_on(table, job, 15.0)
    assert job.placement.title == "s1"
    table.changing.report_loss(job, job.placement.epoch, "it is silent", 20.0)
    freeze(table, job, 20.0)
    table.tick(20.0)
    go_on(table, job, 20.0)
    assert job.placement.aggregation == "inner"


def test_a_job_returns_to_both_spines() -> None:
    table = new_table(topology=LEAF_SPINE)
    job = running(table)
    assert job.placement.tree.roots == 2
    table.switches.lost("spine2", 1.0)
    freeze(table, job, 1.0)
    for now in (4.0, 5.0):
        table.tick(now)
    go_on(table, job, 5.0)
    assert job.placement.tree.roots == 1
    table.switches.connected("spine2")
    pass_time(table, job, 5.0, 7.0 + AFTER_S)
    go_on(table, job, 8.0 + AFTER_S)
    assert job.placement.tree.roots == 2


def test_a_job_on_another_spine_of_the_same_number_stays_there() -> None:
    table = new_table(topology=LEAF_SPINE, max_roots=1)
    job = running(table)
    (root,) = (switch.name for switch in job.placement.tree.switches if not switch.above)
    table.switches.lost(root, 1.0)
    freeze(table, job, 1.0)
    for now in (4.0, 5.0):
        table.tick(now)
    go_on(table, job, 5.0)
    table.switches.connected(root)
    pass_time(table, job, 5.0, 40.0)
    assert job.state == "running"


def test_a_job_that_began_on_servers_has_no_better_way() -> None:
    table = new_table()
    job = create_on_servers(table, 2, SLOTS, on_path_loss=ALL)
    for rank in range(2):
        table.register(job.id, replace(member(rank), server_udp_port=5000), 0.0)
    for rank in range(2):
        table.serve(job.id, rank, 0.0)
    table.changing.report_loss(job, job.placement.epoch, "it is silent", 1.0)
    go_on(table, job, 1.0)
    pass_time(table, job, 1.0, 40.0)
    assert job.state == "running"


def test_a_switch_that_is_lost_meanwhile_has_to_stay_from_then_on() -> None:
    table, job = fallen()
    pass_time(table, job, 5.0, 5.0 + AFTER_S - 2)
    table.switches.lost("s1", 5.0 + AFTER_S - 2)
    pass_time(table, job, 5.0 + AFTER_S - 1.5, 5.0 + AFTER_S)
    table.switches.connected("s1")
    pass_time(table, job, 5.0 + AFTER_S, 4.0 + 2 * AFTER_S)
    assert job.state == "running"
    pass_time(table, job, 4.0 + 2 * AFTER_S, 8.0 + 2 * AFTER_S)
    assert job.state == "changing"


def test_no_job_returns_while_the_switch_does_not_answer_one_of_its_ranks() -> None:
    table, job = fallen()
    pass_time(table, job, 5.0, 60.0, silent=frozenset({1}))
    assert job.state == "running"
    pass_time(table, job, 60.0, 62.0 + AFTER_S)
    assert job.state == "changing"


def test_each_return_that_does_not_last_doubles_the_time_until_the_next() -> None:
    table = new_table()
    job = running(table)
    now = 1.0
    waited = []
    for _ in range(4):
        fall(table, job, now)
        table.switches.connected("s1")
        begin = now + 5
        pass_time(table, job, begin, begin + 200)
        assert job.change is not None
        waited.append(job.change.began - begin)
        go_on(table, job, job.change.began)
        now = job.resumed_at + 1
    for count, seconds in enumerate(waited):
        assert seconds == pytest.approx(2**count * AFTER_S, abs=2)
    job.way_back.way_lost(now + 600)
    assert job.way_back.factor == 1


def test_a_way_that_dies_again_at_once_leads_back_to_servers() -> None:
    """Ranks find it dead, though the controller sees nothing wrong."""
    table, job = returning()
    go_on(table, job, 20.0)
    table.changing.report_loss(job, job.placement.epoch, "it is silent", 22.0)
    assert job.change is not None
    assert job.change.options == ["servers", "fail"]
    freeze(table, job, 22.0)
    table.tick(22.1)
    go_on(table, job, 22.1)
    assert job.placement.title == "2 colocated servers"


@pytest.mark.parametrize("workers", [2, 66])
def test_no_job_goes_back_that_could_not_go_to_servers(workers: int) -> None:
    """If its first way turns out to be dead, such a job would fail, though it is well where it is."""
    table = new_table(topology=LEAF_SPINE, max_workers=128)
    job = running(table, ("same", "other", "fail") if workers == 2 else ALL, workers)
    table.switches.lost("spine2", 1.0)
    freeze(table, job, 1.0)
    for now in (4.0, 5.0):
        table.tick(now)
    go_on(table, job, 5.0)
    table.switches.connected("spine2")
    pass_time(table, job, 5.0, 40.0)
    assert (job.state, job.placement.tree.roots) == ("running", 1)


def test_a_rank_that_cannot_freeze_now_only_delays_the_return() -> None:
    """Its program holds the GIL, and its process shows that it lives."""
    table = new_table()
    job = running(table)
    fall(table, job, 1.0)
    for rank in range(2):
        table.attend(job.id, rank, 5.0)
    table.switches.connected("s1")
    pass_time(table, job, 5.0, 7.0 + AFTER_S)
    assert job.change is not None
    began = job.change.began
    freeze(table, job, began, ranks=[0])
    for half in range(2, 120):
        for rank in range(2):
            table.hear(job.id, job.members[rank], began + half / 2)
        table.tick(began + half / 2)
    assert job.state == "changing"
    go_on(table, job, began + 60)
    assert job.placement.title == "s1"


def test_no_job_goes_back_while_a_rank_sends_no_heartbeats() -> None:
    table, job = fallen()
    for rank in range(2):
        table.attend(job.id, rank, 5.0)
    for half in range(10, 80):
        table.heartbeat(job.id, 0, half / 2, Report(0))
        table.hear(job.id, job.members[1], half / 2)
        table.tick(half / 2)
    assert job.state == "running"


def test_counts_of_a_server_that_come_late_do_no_harm() -> None:
    table, job = returning()
    go_on(table, job, 18.0)
    table.heartbeat(job.id, 0, 18.1, Report(0, summed=Summed()))
    assert job.state == "running"


def test_many_jobs_go_back_one_after_the_other() -> None:
    table = new_table(slot_versions=256)
    jobs = [running(table) for _ in range(5)]
    table.switches.lost("s1", 1.0)
    for job in jobs:
        freeze(table, job, 1.0)
    for now in (4.0, 5.0):
        table.tick(now)
    for job in jobs:
        go_on(table, job, 5.0)
    table.switches.connected("s1")
    began: list[float] = []
    for tenth in range(50, 250):
        for job in jobs:
            if job.state == "running":
                for rank in range(2):
                    table.heartbeat(job.id, rank, tenth / 10, Report(0))
        before = sum(job.state == "changing" for job in jobs)
        table.tick(tenth / 10)
        assert sum(job.state == "changing" for job in jobs) <= before + 1
        began += [tenth / 10] * (sum(job.state == "changing" for job in jobs) - before)
    assert len(began) == len(jobs)
    assert max(began) - min(began) < 2.0


def test_a_job_goes_on_if_its_first_way_dies_while_it_returns() -> None:
    table, job = returning()
    freeze(table, job, 18.0, ranks=[0])
    table.switches.lost("s1", 18.0)
    fall(table, job, 18.5)


def test_no_job_returns_that_a_rank_has_left() -> None:
    table, job = fallen()
    table.leave(job.id, 1, 6.0)
    for half in range(12, 60):
        table.heartbeat(job.id, 0, half / 2)
        table.tick(half / 2)
    assert job.state == "running"
    table.leave(job.id, 0, 31.0)
    assert job.state == "finished"


def test_a_rank_can_leave_when_all_have_returned() -> None:
    table, job = returning()
    with pytest.raises(ConflictError, match="rank 1 can leave when all have gone on"):
        table.leave(job.id, 1, 18.0)
    go_on(table, job, 18.0)
    for rank in range(2):
        table.leave(job.id, rank, 19.0)
    assert job.state == "finished"


def test_no_job_returns_to_slots_that_others_have() -> None:
    table = new_table(slot_versions=4 * SLOTS, job_share=1.0)
    job = running(table)
    fall(table, job, 1.0)
    table.switches.connected("s1")
    other = create_leased(table, 1, 2 * SLOTS)
    pass_time(table, job, 5.0, 19.0)
    assert job.state == "running"
    table.end(other.id, 19.0)
    carry_out(table, 19.0)
    pass_time(table, job, 19.5, 22.0 + AFTER_S)
    assert job.state == "changing"


def test_a_controller_that_starts_again_takes_jobs_back() -> None:
    before = new_table()
    job = running(before)
    fall(before, job, 1.0)
    members = {(job.id, rank): record_of_member(known) for rank, known in job.members.items()}
    saved = Saved(jobs={job.id: record_of(job)}, members=members, numbers=before.changes().numbers)
    table = new_table(now=10.0)
    table.restore(saved, 10.0)
    job = table.job(job.id)
    assert job.placement.title == "2 colocated servers"
    pass_time(table, job, 10.0, 12.0 + AFTER_S)
    go_on(table, job, 23.0)
    assert job.placement.title == "s1"


def test_a_controller_that_starts_again_leaves_ranks_that_sum_themselves_alone() -> None:
    before = new_table()
    job = running(before, ("inner",))
    before.switches.lost("s1", 1.0)
    freeze(before, job, 1.0)
    before.tick(1.0)
    go_on(before, job, 1.0)
    epoch = job.placement.epoch
    members = {(job.id, rank): record_of_member(known) for rank, known in job.members.items()}
    saved = Saved(jobs={job.id: record_of(job)}, members=members, numbers=before.changes().numbers)
    table = new_table(now=10.0, connected=False)
    table.restore(saved, 10.0)
    job = table.job(job.id)
    assert (job.state, job.placement.aggregation, job.placement.epoch) == ("running", "inner", epoch)
    table.switches.connected("s1")
    pass_time(table, job, 10.0, 12.0 + AFTER_S)
    go_on(table, job, 23.0)
    assert job.placement.title == "s1"
