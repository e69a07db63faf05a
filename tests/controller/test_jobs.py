# SPDX-License-Identifier: Apache-2.0
"""What the job table promises for jobs of every kind: literal cases, in virtual time.

`test_switched_jobs` and `test_served_jobs` have what holds for jobs on switches and for jobs with servers. The files
`test_leased_jobs`, `test_shared_jobs` and `test_server_jobs` have what is particular to one kind.
"""

from typing import Any

import pytest

from inagg_controller.errors import ConflictError, InvalidRequestError, UnavailableError, UnknownJobError
from inagg_controller.jobs.epochs import KEY_BYTES, Epochs
from tests.controller.kinds import (
    KINDS,
    Kind,
    all_is_free,
    create,
    join,
    obey,
    running,
    table_for_all,
    tick,
    worker_of,
)

SILENT = "no heartbeat for 3 s: its process is stopped, or its host is down or cut off"
DEAD = "its process has ended without leaving the job"


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


# Creation


@pytest.mark.parametrize(("workers", "fault"), [(0, "workers is 0; a job on"), (65, "workers")])
def test_a_job_at_one_switch_or_on_servers_has_1_to_64_workers(kind: Kind, workers: int, fault: str) -> None:
    table = table_for_all()
    with pytest.raises(InvalidRequestError, match=fault):
        create(table, kind, workers)
    assert (table.jobs, all_is_free(table)) == ({}, True)
    assert create(table, kind, 64).workers == 64


@pytest.mark.parametrize("slots", [-4, 0, 1, 3])
def test_slots_are_a_power_of_two_and_at_least_two(kind: Kind, slots: int) -> None:
    table = table_for_all()
    with pytest.raises(InvalidRequestError, match=f"slots is {slots}; it must be a power of two, at least 2"):
        create(table, kind, slots=slots)
    assert (table.jobs, all_is_free(table)) == ({}, True)


@pytest.mark.parametrize(("asked", "max_slots", "granted"), [(2, 8, 2), (8, 8, 8), (16, 8, 8), (16, 15, 8)])
def test_slots_are_capped_by_the_limit(kind: Kind, asked: int, max_slots: int, granted: int) -> None:
    assert create(table_for_all(max_slots=max_slots), kind, slots=asked).slots == granted


def test_epochs_end_with_an_error_and_never_wrap(kind: Kind) -> None:
    table = table_for_all(epochs=Epochs(bytes(KEY_BYTES), 2**32 - 1))
    job = create(table, kind)
    table.end(job.id, 0.0)
    with pytest.raises(UnavailableError, match="every epoch has been used"):
        create(table, kind)
    assert all_is_free(table)


def test_job_numbers_are_not_used_again_soon(kind: Kind) -> None:
    table = table_for_all()
    numbers = []
    for now in range(5):
        numbers.append(create(table, kind, now=100.0 * now).id)
        table.end(numbers[-1], 100.0 * now)
        tick(table, 100.0 * now + 50)
    assert numbers == [1, 2, 3, 4, 5]


# When a job runs


def test_a_job_runs_when_all_ranks_have_registered_and_all_that_sums_for_it_is_ready(kind: Kind) -> None:
    table = table_for_all()
    job = create(table, kind)
    table.register(job.id, worker_of(job, 1), 0.0)
    obey(table, 0.1)
    assert (job.state, job.missing) == ("joining", [0])
    table.register(job.id, worker_of(job, 0), 0.2)
    assert job.state == "joining"
    obey(table, 0.3)
    assert (job.state, job.liveness.last_seen) == ("running", {0: 0.3, 1: 0.3})
    assert not table.switches.effects


def test_a_refused_registration_changes_nothing(kind: Kind) -> None:
    table = table_for_all()
    job = create(table, kind)
    first = worker_of(job, 0)
    table.register(job.id, first, 0.0)
    version, members = table.version, dict(job.members)
    for refused, fault in (
        (worker_of(job, 0, host=3), "rank 0 of job 1 is already registered by a worker at another address"),
        (worker_of(job, 2), "rank is 2; the ranks of job 1 are 0 to 1"),
        (worker_of(job, -1), "rank is -1; the ranks of job 1 are 0 to 1"),
    ):
        with pytest.raises((ConflictError, InvalidRequestError), match=fault):
            table.register(job.id, refused, 0.0)
    table.register(job.id, first, 0.0)  # the answer to the first was lost
    assert (table.version, job.members, job.state) == (version, members, "joining")


def test_a_job_that_runs_or_has_ended_takes_no_new_worker(kind: Kind) -> None:
    table = table_for_all()
    job = running(table, kind)
    with pytest.raises(ConflictError, match="rank 0 of job 1 is already registered by a worker at another"):
        table.register(job.id, worker_of(job, 0, host=3), 0.0)
    table.leave(job.id, 0, 0.0)
    with pytest.raises(ConflictError, match="rank 0 has left job 1"):
        table.register(job.id, worker_of(job, 0), 0.0)
    table.leave(job.id, 1, 0.0)
    with pytest.raises(ConflictError, match="job 1 has finished"):
        table.register(job.id, worker_of(job, 1), 0.0)
    other = create(table, kind)
    table.end(other.id, 0.0)
    with pytest.raises(ConflictError, match=r"job 2 has failed \(ended on request\)"):
        table.register(other.id, worker_of(other, 0), 0.0)


def test_a_job_whose_ranks_do_not_all_come_in_time_names_them_and_holds_nothing(kind: Kind) -> None:
    table = table_for_all()
    job = create(table, kind, workers=3)
    table.register(job.id, worker_of(job, 1), 1.0)
    tick(table, 19.9)
    assert job.state == "joining"
    tick(table, 20.0)
    assert (job.state, job.reason) == ("failed", "ranks [0, 2] did not join in time")
    assert all_is_free(table)


# Ranks that leave


def test_a_rank_that_leaves_makes_room_until_the_job_is_complete(kind: Kind) -> None:
    table = table_for_all()
    job = create(table, kind)
    table.register(job.id, worker_of(job, 0), 0.0)
    table.leave(job.id, 0, 0.0)
    assert (job.state, job.members) == ("joining", {})
    table.register(job.id, worker_of(job, 0, host=3), 0.0)
    assert job.members[0].ip == 0x0A000003
    table.register(job.id, worker_of(job, 1), 0.0)
    table.leave(job.id, 0, 0.0)
    assert (job.state, job.reason, job.lost) == ("failed", "rank 0 (10.0.0.3): left", {0: "left"})
    obey(table)
    assert (job.state, all_is_free(table)) == ("failed", True)


def test_a_job_finishes_when_all_ranks_have_left_and_is_forgotten_later(kind: Kind) -> None:
    table = table_for_all()
    job = running(table, kind)
    for rank in range(2):
        assert job.state == "running"
        table.leave(job.id, rank, 1.0)
    assert (job.state, job.reason, job.gone) == ("finished", None, {})
    obey(table, 1.0)
    assert all_is_free(table)
    tick(table, 30.9)
    assert list(table.jobs) == [job.id]
    tick(table, 31.0)
    assert table.jobs == {}


def test_a_rank_that_has_left_is_not_lost_when_it_stops_beating(kind: Kind) -> None:
    table = table_for_all()
    job = running(table, kind)
    table.leave(job.id, 0, 0.1)
    for tenth in range(1, 60):
        table.heartbeat(job.id, 1, tenth / 10)
        tick(table, tenth / 10)
    assert (job.state, job.gone) == ("running", {0: "left"})
    with pytest.raises(ConflictError, match="rank 0 has left"):
        table.heartbeat(job.id, 0, 6.0)


def test_a_lost_rank_is_told_beside_those_that_left(kind: Kind) -> None:
    table = table_for_all()
    job = running(table, kind, workers=3)
    table.leave(job.id, 0, 0.1)
    table.leave(job.id, 2, 0.2, "chunk 8: bad checksum")
    assert job.gone == {0: "left", 2: "chunk 8: bad checksum"}
    assert (job.state, job.reason) == ("failed", "rank 2 (10.0.0.3): chunk 8: bad checksum")


# Silent ranks


def test_a_heartbeat_just_in_time_keeps_a_job_and_one_too_late_does_not(kind: Kind) -> None:
    table = table_for_all()
    job = running(table, kind, now=10.0)
    for now in (10.5, 11.0, 11.5, 12.0, 12.5):
        tick(table, now)
    table.heartbeat(job.id, 0, 12.9)
    table.heartbeat(job.id, 1, 12.9)
    for now in (13.1, 13.6, 14.1, 14.6, 15.1, 15.6, 15.8):
        tick(table, now)
        table.heartbeat(job.id, 0, now)
    assert job.state == "running"
    tick(table, 15.9)
    assert (job.state, job.lost, job.reason) == ("failed", {1: SILENT}, f"rank 1 (10.0.0.2): {SILENT}")
    obey(table, 15.9)
    assert all_is_free(table)


def test_heartbeats_are_not_asked_of_ranks_that_wait_for_others(kind: Kind) -> None:
    table = table_for_all()
    job = create(table, kind)
    table.register(job.id, worker_of(job, 0), 0.0)
    for tenth in range(100):
        tick(table, tenth / 10)
    table.register(job.id, worker_of(job, 1), 10.0)
    obey(table, 10.0)
    tick(table, 10.1)
    assert job.state == "running"


def test_a_rank_that_began_to_beat_and_stops_fails_a_job_that_still_waits_for_others(kind: Kind) -> None:
    table = table_for_all()
    job = create(table, kind)
    table.register(job.id, worker_of(job, 0), 0.0)
    table.heartbeat(job.id, 0, 0.5)
    for tenth in range(125):
        tick(table, tenth / 10)
    assert job.state == "joining"
    tick(table, 12.5)
    assert (job.state, job.lost) == ("failed", {0: SILENT.replace("3 s", "12 s")})
    assert all_is_free(table)


def test_a_rank_that_stays_silent_after_the_others_are_heard_again_is_lost(kind: Kind) -> None:
    table = table_for_all()
    job = running(table, kind)
    for tenth in range(1, 82):
        tick(table, tenth / 10)
        if tenth >= 50:
            table.heartbeat(job.id, 0, tenth / 10)
    assert (job.state, job.lost) == ("failed", {1: SILENT})


def test_a_rank_whose_beats_may_pause_is_lost_later(kind: Kind) -> None:
    table = table_for_all()
    job = running(table, kind)
    table.attend(job.id, 1, 0.0, steady=False)
    for tenth in range(1, 121):
        assert job.state == "running"
        table.heartbeat(job.id, 0, tenth / 10)
        tick(table, tenth / 10)
    silent = "no heartbeat for 12 s: its process is stopped or holds the GIL, or its host is down or cut off"
    assert (job.state, job.lost) == ("failed", {1: silent})


def test_a_rank_that_replaces_one_whose_beats_may_pause_is_lost_as_soon_as_any_other(kind: Kind) -> None:
    table = table_for_all()
    job = create(table, kind)
    table.register(job.id, worker_of(job, 1), 0.0)
    table.attend(job.id, 1, 0.0, steady=False)
    table.leave(job.id, 1, 0.0)
    table.register(job.id, worker_of(job, 1, host=3), 0.0)
    table.register(job.id, worker_of(job, 0), 0.0)
    table.attend(job.id, 1, 0.0)
    obey(table)
    for tenth in range(1, 31):
        assert job.state == "running"
        table.heartbeat(job.id, 0, tenth / 10)
        tick(table, tenth / 10)
    assert (job.state, job.lost) == ("failed", {1: SILENT})


def test_a_machine_that_is_always_late_does_not_hide_a_silent_rank(kind: Kind) -> None:
    table = table_for_all()
    job = running(table, kind)
    for second in range(1, 6):
        table.heartbeat(job.id, 0, float(second))
        tick(table, float(second))
    assert (job.state, job.lost) == ("failed", {1: SILENT})


def test_time_in_which_the_controller_itself_stood_still_is_not_held_against_ranks(kind: Kind) -> None:
    table = table_for_all()
    job = running(table, kind)
    tick(table, 0.1)
    tick(table, 60.0)
    assert job.state == "running"
    for tenth in range(1, 121):
        tick(table, 60.0 + tenth / 10)
    assert job.state == "failed"


@pytest.mark.parametrize("cut_s", [2.0, 3.0, 5.0, 11.0])
def test_a_controller_that_hears_no_rank_for_a_while_loses_none(kind: Kind, cut_s: float) -> None:
    table = table_for_all()
    job = running(table, kind)
    back = {0: 1.0 + cut_s, 1: 1.9 + cut_s}
    for tenth in range(1, 200):
        now = tenth / 10
        for rank in (0, 1):
            if now <= 1.0 or now >= back[rank]:
                table.heartbeat(job.id, rank, now)
        tick(table, now)
    assert job.state == "running"


# Ranks whose process has ended


def test_a_rank_whose_process_has_ended_is_lost_as_soon_as_others_have_had_the_last_results(
    kind: Kind,
) -> None:
    table = table_for_all()
    job = running(table, kind, now=10.0)
    table.vanish(job.id, job.members[1], 10.1)
    for now in (10.2, 10.3, 10.4, 10.5):
        tick(table, now)
    assert job.state == "running"
    tick(table, 10.6)
    assert (job.state, job.lost) == ("failed", {1: DEAD})


def test_a_rank_that_dies_before_the_job_runs_fails_it(kind: Kind) -> None:
    table = table_for_all()
    job = join(table, create(table, kind))
    table.attend(job.id, 1, 0.0)
    table.vanish(job.id, job.members[1], 0.1)
    for now in (0.2, 0.4, 0.6):
        tick(table, now)
    assert (job.state, job.lost) == ("failed", {1: DEAD})
    obey(table, 0.7)
    assert (job.state, all_is_free(table)) == ("failed", True)


@pytest.mark.parametrize("again_first", [False, True])
def test_a_connection_that_breaks_and_is_made_again_is_no_death(kind: Kind, again_first: bool) -> None:
    table = table_for_all()
    job = running(table, kind, now=10.0)
    first = table.attend(job.id, 1, 10.0)
    if again_first:  # before the controller hears of the end of the other
        table.attend(job.id, 1, 10.1)
        table.vanish(job.id, first, 10.2)
    else:
        table.vanish(job.id, first, 10.1)
        table.attend(job.id, 1, 10.2)
    tick(table, 12.0)
    assert job.state == "running"
    table.vanish(job.id, first, 12.0)
    tick(table, 12.6)
    assert (job.state, job.lost) == ("failed", {1: DEAD})


def test_the_end_of_a_process_that_has_left_or_was_replaced_means_nothing(kind: Kind) -> None:
    table = table_for_all()
    job = running(table, kind)
    table.leave(job.id, 0, 0.1)
    table.vanish(job.id, job.members[0], 0.1)
    other = create(table, kind)
    before = table.register(other.id, worker_of(other, 0, host=3), 0.0).members[0]
    table.leave(other.id, 0, 0.1)
    table.register(other.id, worker_of(other, 0, host=4), 0.1)
    table.vanish(other.id, before, 0.1)
    table.vanish(9999, before, 0.1)
    for tenth in range(2, 20):
        tick(table, tenth / 10)
    assert (job.state, other.state) == ("running", "joining")


def test_a_presence_connection_of_a_job_that_is_no_more_says_nothing_of_the_next_with_its_number(
    kind: Kind,
) -> None:
    table = table_for_all()
    job = running(table, kind)
    member = table.attend(job.id, 1, 0.0)
    assert table.hear(job.id, member, 1.0)
    other = running(table, kind, now=2.0)
    table._states.jobs[job.id] = other  # the numbers have begun again
    assert not table.hear(job.id, member, 9.0)
    assert other.liveness.last_seen[1] == 2.0
    del table._states.jobs[job.id]
    assert not table.hear(job.id, member, 9.0)


# Ended jobs


def test_a_job_that_never_was_complete_holds_nothing_after_its_end(kind: Kind) -> None:
    table = table_for_all()
    job = create(table, kind)
    table.register(job.id, worker_of(job, 0), 0.0)
    table.end(job.id, 0.0)
    assert (job.state, job.reason, all_is_free(table)) == ("failed", "ended on request", True)


@pytest.mark.parametrize("runs", [False, True])
def test_an_ended_job_does_not_change_and_holds_what_it_has_until_all_of_it_is_given_back(
    kind: Kind, runs: bool
) -> None:
    table = table_for_all()
    job = join(table, create(table, kind))
    if runs:
        obey(table)
        assert job.state == "running"
    table.end(job.id, 1.0)
    obey(table, 1.0)
    assert all_is_free(table)
    version = table.version
    table.leave(job.id, 0, 2.0, "too late")
    table.end(job.id, 2.0)
    table.unicast(job.id)
    obey(table, 2.0)
    assert (job.state, job.reason, job.ended_at, table.version) == (
        "failed",
        "ended on request",
        1.0,
        version,
    )
    assert [each.id for each in table.take_ended()] == [job.id]


def test_ended_jobs_are_forgotten_after_a_while_and_above_a_number(kind: Kind) -> None:
    table = table_for_all(max_ended=2)
    numbers = [create(table, kind, now=now).id for now in (0.0, 1.0, 2.0)]
    for now, number in enumerate(numbers):
        table.end(number, float(now))
    tick(table, 3.0)
    assert list(table.jobs) == numbers[1:]
    with pytest.raises(UnknownJobError, match="there is no job 1"):
        table.job(numbers[0])
    tick(table, 31.5)
    assert list(table.jobs) == numbers[2:]


@pytest.mark.parametrize("limits", [{"max_ended": 4}, {"max_ended_ranks": 8}])
def test_a_host_that_ends_many_jobs_has_only_its_own_forgotten(kind: Kind, limits: dict[str, Any]) -> None:
    table = table_for_all(host_share=0.5, **limits)
    other = create(table, kind, creator="10.0.0.2").id
    table.end(other, 0.0)
    for now in (1.0, 2.0, 3.0, 4.0):
        table.end(create(table, kind, now=now, creator="10.0.0.1").id, now)
    tick(table, 5.0)
    assert list(table.jobs) == [other, 4, 5]


# Jobs of several kinds


def test_jobs_of_all_kinds_run_beside_one_another_with_numbers_and_epochs_of_their_own() -> None:
    table = table_for_all()
    jobs = [running(table, each) for each in KINDS]
    assert [job.id for job in jobs] == [1 + n for n in range(5)]
    assert len({job.placement.epoch for job in jobs}) == 5
    assert [job.placement.aggregation for job in jobs] == [each.aggregation for each in KINDS]
    groups = {job.placement.group for job in jobs} - {None}
    assert len(groups) == 3
    while jobs:
        table.end(jobs.pop(0).id, 1.0)
        obey(table, 1.0)
        assert {job.state for job in jobs} <= {"running"}
    assert all_is_free(table)


def test_a_job_of_one_kind_that_fails_leaves_those_of_the_others(kind: Kind) -> None:
    table = table_for_all()
    jobs = {each: running(table, each) for each in KINDS}
    table.leave(jobs[kind].id, 0, 1.0, "broken")
    obey(table, 1.0)
    assert {each for each, job in jobs.items() if job.state == "failed"} == {kind}
    held = [job for job in jobs.values() if job.holds_resources]
    assert held == [job for each, job in jobs.items() if each != kind]
    assert running(table, kind, now=2.0).id == 6
