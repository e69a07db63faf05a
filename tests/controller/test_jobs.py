# SPDX-License-Identifier: Apache-2.0
"""The life of jobs: literal cases, in virtual time."""

from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from inagg_controller.errors import ConflictError, FullError, UnavailableError, UnknownJobError
from inagg_controller.jobs.effects import Install, Regroup, Remove
from inagg_controller.jobs.limits import Limits
from inagg_controller.jobs.table import JobTable
from inagg_controller.switch.entries import MulticastGroup
from tests.controller.serving import STAR
from tests.controller.tables import POLICY, carry_out, create_leased, frees_slots, member, new_table, running

SILENT = "no heartbeat for 3 s: its process is stopped, or its host is down or cut off"


def test_a_complete_job_asks_for_exactly_the_entries_of_the_protocol() -> None:
    table = new_table()
    create_leased(table, 1, 4, "", 0.0)
    job = create_leased(table, 2, 4, "", 0.0)
    table.register(job.id, member(1), 0.0)
    assert not table.switches.effects
    table.register(job.id, member(0), 0.0)
    (effect,) = table.switches.effects
    assert isinstance(effect, Install)
    entries = effect.entries["s1"]
    assert [dict(entry.match) for entry in entries.receivers] == [
        {"job": 2, "rank": 0},
        {"job": 2, "rank": 1},
        {"job": 2, "rank": 255},
    ]
    to_all = {"mac": 0x01005E400002, "ip": 0xEFC00002, "udp_port": 0x4941}
    assert dict(entries.receivers[2].params) == to_all
    assert (entries.group.group, entries.group.replicas) == (3, ((1, 256), (2, 256)))
    assert dict(entries.admissions[1].match) == {"port": 2, "source": 0x0A000002, "job": 2, "rank": 1}
    assert dict(entries.admissions[1].params) == {
        "member": 0b10,
        "all": 0b11,
        "slot_base": 8,
        "slot_mask": 7,
        "epoch": 101,
        "result_group": 3,
        "parents": 0,
    }


def test_sixty_four_workers_use_every_bit() -> None:
    job = running(new_table(), workers=64)
    assert job.placement.entries
    *_, last = job.placement.entries["s1"].admissions
    assert dict(last.params)["member"] == 1 << 63
    assert dict(last.params)["all"] == 2**64 - 1


def test_results_are_sent_once_for_all_workers_behind_a_port() -> None:
    table = new_table()
    job = create_leased(table, 3, 4, "", 0.0)
    for rank, host in enumerate((1, 2, 1)):
        table.register(job.id, replace(member(rank, host), udp_port=4000 + rank), 0.0)
    carry_out(table, 0.0)
    assert job.placement.entries
    assert job.placement.entries["s1"].group.replicas == ((1, 256), (2, 256))


def test_a_job_of_one_worker_has_no_multicast_address() -> None:
    job = running(new_table(), workers=1)
    assert job.placement.results_ip is None
    assert job.placement.entries
    assert [dict(entry.match)["rank"] for entry in job.placement.entries["s1"].receivers] == [0]
    assert job.placement.entries["s1"].group.replicas == ((1, 1),)


def test_a_job_that_is_changed_to_unicast_while_it_is_installed_runs_when_that_is_done() -> None:
    table = new_table()
    job = create_leased(table, 2, 4, "", 0.0)
    for rank in range(2):
        table.register(job.id, member(rank), 0.0)
    installation = table.switches.effects.popleft()  # under way
    table.unicast(job.id)
    table.switches.done(installation, 1.0)
    assert job.state == "joining"
    (change,) = table.switches.effects
    table.switches.done(change, 2.0)
    assert (job.state, job.liveness.last_seen) == ("running", {0: 2.0, 1: 2.0})


@pytest.mark.parametrize("installed", [False, True])
def test_a_job_without_multicast_gets_a_copy_for_each_worker(installed: bool) -> None:
    table = new_table()
    job = create_leased(table, 2, 4, "", 0.0)
    table.register(job.id, member(0), 0.0)
    if installed:
        table.register(job.id, member(1), 0.0)
        carry_out(table, 0.0)
    for _ in range(2):
        assert table.unicast(job.id).placement.results_ip is None
    if installed:
        assert table.switches.effects == deque(
            [Regroup(job.id, job.placement.epoch, 0, {"s1": MulticastGroup(2, ((1, 1), (2, 2)))})]
        )
    else:
        table.register(job.id, member(1), 0.0)
    carry_out(table, 0.0)
    assert job.state == "running"
    assert job.placement.entries
    assert job.placement.entries["s1"].group.replicas == ((1, 1), (2, 2))


def test_a_job_runs_only_when_its_entries_are_in() -> None:
    table = new_table()
    job = create_leased(table, 1, 4, "", 0.0)
    table.register(job.id, member(0), 0.0)
    assert job.state == "joining"
    carry_out(table, 0.0)
    assert job.state == "running"


@pytest.mark.parametrize(
    ("asked", "max_slots", "granted"), [(2, 8, 2), (8, 8, 8), (16, 8, 8), (16, 15, 8), (1024, 1024, 32)]
)
def test_slots_are_capped_by_the_limit_and_by_what_is_free(asked: int, max_slots: int, granted: int) -> None:
    assert create_leased(new_table(max_slots=max_slots), 2, asked, "", 0.0).slots == granted


def test_a_smaller_window_is_granted_before_a_job_is_refused() -> None:
    table = new_table()
    assert [create_leased(table, 1, 16, "", 0.0).slots for _ in range(2)] == [16, 16]
    with pytest.raises(UnavailableError, match="slot pool of switch s1 is full"):
        create_leased(table, 1, 16, "", 0.0)
    table = new_table()
    create_leased(table, 1, 16, "", 0.0)
    create_leased(table, 1, 8, "", 0.0)
    assert create_leased(table, 1, 16, "", 0.0).slots == 8


def test_slots_that_are_too_few_to_fill_a_link_are_not_leased() -> None:
    table = new_table(slot_versions=256)  # 128 slots
    for asked in (64, 32, 16):
        assert create_leased(table, 1, asked, "", 0.0).slots == min(asked, 32)
    create_leased(table, 1, 32, "", 0.0)
    create_leased(table, 1, 8, "", 0.0)
    with pytest.raises(FullError, match="8 of 128 slots are free"):
        create_leased(table, 1, 256, "", 0.0)
    assert create_leased(table, 1, 8, "", 0.0).slots == 8


def test_many_jobs_find_room_beside_one_another_as_each_leaves_some() -> None:
    table = new_table(slot_versions=16384)
    granted = [create_leased(table, 1, 256, "", 0.0).slots for _ in range(41)]
    assert granted == [256] * 29 + [128] * 3 + [64] * 3 + [32] * 6
    with pytest.raises(UnavailableError, match="slot pool of switch s1 is full"):
        create_leased(table, 1, 256, "", 0.0)


@pytest.mark.parametrize(
    ("shares", "granted"),
    [
        ({}, 32),
        ({"host_share": 1.0}, 32),
        ({"job_share": 1.0}, 64),
        ({"job_share": 0.5}, 32),
        ({"host_share": 1.0, "job_share": 1.0}, 128),
    ],
)
def test_a_job_gets_no_more_than_its_share_and_its_hosts(shares: dict[str, Any], granted: int) -> None:
    table = new_table(slot_versions=256, **shares)
    assert create_leased(table, 2, 256, "", 0.0, "10.0.0.1").slots == granted


def test_a_job_that_has_all_slots_leaves_none() -> None:
    table = new_table(slot_versions=256, host_share=1.0, job_share=1.0)
    job = create_leased(table, 2, 128, "", 0.0, "10.0.0.1")
    with pytest.raises(UnavailableError, match="0 of 128 slots are free; wait until a job ends"):
        create_leased(table, 2, 2, "", 0.0, "10.0.0.2")
    table.end(job.id, 1.0)
    carry_out(table, 1.0)
    assert create_leased(table, 2, 128, "", 1.0, "10.0.0.2").slots == 128


def test_slots_that_are_about_to_be_free_are_known() -> None:
    table = new_table()
    job = running(table)
    assert not frees_slots(table)
    table.end(job.id, 0.0)
    assert frees_slots(table)
    carry_out(table, 0.0)
    assert not frees_slots(table)


def test_the_tables_bound_the_number_of_workers() -> None:
    table = new_table(max_members=3)
    create_leased(table, 2, 2, "", 0.0)
    with pytest.raises(UnavailableError, match="hold 3 workers and 2 are taken"):
        create_leased(table, 2, 2, "", 0.0)
    create_leased(table, 1, 2, "", 0.0)


def test_no_job_is_created_without_a_switch() -> None:
    table = JobTable(STAR, Limits(slot_versions=64), POLICY, first_epoch=1, now=0.0, words=4)
    with pytest.raises(UnavailableError, match="not connected"):
        create_leased(table, 1, 2, "", 0.0)


def test_epochs_end_with_an_error_and_never_wrap() -> None:
    table = JobTable(STAR, Limits(slot_versions=64), POLICY, first_epoch=2**32 - 1, now=0.0, words=4)
    table.switches.connected("s1")
    assert create_leased(table, 1, 2, "", 0.0).placement.epoch == 2**32 - 1
    with pytest.raises(UnavailableError, match="every epoch has been used"):
        create_leased(table, 1, 2, "", 0.0)


def test_a_heartbeat_just_in_time_keeps_a_job_and_one_too_late_does_not() -> None:
    table = new_table()
    job = running(table, now=10.0)
    for now in (10.5, 11.0, 11.5, 12.0, 12.5):
        table.tick(now)
    table.heartbeat(job.id, 0, 12.9)
    table.heartbeat(job.id, 1, 12.9)
    for now in (13.1, 13.6, 14.1, 14.6, 15.1, 15.6, 15.8):
        table.tick(now)
        table.heartbeat(job.id, 0, now)
    assert job.state == "running"
    table.tick(15.9)
    assert (job.state, job.lost) == ("failed", {1: SILENT})


def test_heartbeats_are_not_asked_of_ranks_that_wait_for_others() -> None:
    table = new_table()
    job = create_leased(table, 2, 2, "", 0.0)
    table.register(job.id, member(0), 0.0)
    for tenth in range(100):
        table.tick(tenth / 10)
    table.register(job.id, member(1), 10.0)
    carry_out(table, 10.0)
    table.tick(10.1)
    assert job.state == "running"


def test_a_rank_that_began_to_beat_and_stops_fails_a_job_that_still_waits_for_others() -> None:
    table = new_table()
    job = create_leased(table, 2, 2, "", 0.0)
    table.register(job.id, member(0), 0.0)
    table.heartbeat(job.id, 0, 0.5)
    for tenth in range(126):
        table.tick(tenth / 10)
    assert (job.state, job.lost) == ("failed", {0: SILENT.replace("3 s", "12 s")})
    assert table.switches.pools["s1"].free == 64


def test_a_rank_whose_process_has_ended_is_lost_as_soon_as_others_have_had_the_last_results() -> None:
    table = new_table()
    job = running(table, now=10.0)
    table.vanish(job.id, job.members[1], 10.1)
    for now in (10.2, 10.3, 10.4, 10.5):
        table.tick(now)
    assert job.state == "running"
    table.tick(10.6)
    assert (job.state, job.lost) == ("failed", {1: "its process has ended without leaving the job"})


@pytest.mark.parametrize("again_first", [False, True])
def test_a_connection_that_breaks_and_is_made_again_is_no_death(again_first: bool) -> None:
    table = new_table()
    job = running(table, now=10.0)
    first = table.attend(job.id, 1, 10.0)
    if again_first:  # before the controller hears of the end of the other
        table.attend(job.id, 1, 10.1)
        table.vanish(job.id, first, 10.2)
    else:
        table.vanish(job.id, first, 10.1)
        table.attend(job.id, 1, 10.2)
    table.tick(12.0)
    assert job.state == "running"
    table.vanish(job.id, first, 12.0)
    table.tick(12.6)
    assert (job.state, job.lost) == ("failed", {1: "its process has ended without leaving the job"})


def test_the_end_of_a_process_that_has_left_or_was_replaced_means_nothing() -> None:
    table = new_table()
    job = running(table)
    table.leave(job.id, 0, 0.1)
    table.vanish(job.id, job.members[0], 0.1)
    other = create_leased(table, 2, 4, "", 0.0)
    before = table.register(other.id, member(0, host=3), 0.0).members[0]
    table.leave(other.id, 0, 0.1)
    table.register(other.id, member(0, host=4), 0.1)
    table.vanish(other.id, before, 0.1)
    table.vanish(9999, before, 0.1)
    for tenth in range(2, 20):
        table.tick(tenth / 10)
    assert (job.state, other.state) == ("running", "joining")


def test_time_in_which_the_controller_itself_stood_still_is_not_held_against_ranks() -> None:
    table = new_table()
    job = running(table)
    table.tick(0.1)
    table.tick(60.0)
    assert job.state == "running"
    for tenth in range(1, 121):
        table.tick(60.0 + tenth / 10)
    assert job.state == "failed"


@pytest.mark.parametrize("cut_s", [2.0, 3.0, 5.0, 11.0])
def test_a_controller_that_hears_no_rank_for_a_while_loses_none(cut_s: float) -> None:
    table = new_table()
    job = running(table)
    back = {0: 1.0 + cut_s, 1: 1.9 + cut_s}
    for tenth in range(1, 200):
        now = tenth / 10
        for rank in (0, 1):
            if now <= 1.0 or now >= back[rank]:
                table.heartbeat(job.id, rank, now)
        table.tick(now)
    assert job.state == "running"


def test_a_rank_that_stays_silent_after_the_others_are_heard_again_is_lost() -> None:
    table = new_table()
    job = running(table)
    for tenth in range(1, 82):
        table.tick(tenth / 10)
        if tenth >= 50:
            table.heartbeat(job.id, 0, tenth / 10)
    assert (job.state, job.lost) == ("failed", {1: SILENT})


def test_a_rank_whose_beats_may_pause_is_lost_later() -> None:
    table = new_table()
    job = running(table)
    table.attend(job.id, 1, 0.0, steady=False)
    for tenth in range(1, 121):
        assert job.state == "running"
        table.heartbeat(job.id, 0, tenth / 10)
        table.tick(tenth / 10)
    silent = "no heartbeat for 12 s: its process is stopped or holds the GIL, or its host is down or cut off"
    assert (job.state, job.lost) == ("failed", {1: silent})


def test_a_rank_that_leaves_a_joining_job_makes_room() -> None:
    table = new_table()
    job = create_leased(table, 2, 2, "", 0.0)
    table.register(job.id, member(0), 0.0)
    table.leave(job.id, 0, 0.0)
    table.register(job.id, member(0, host=9), 0.0)
    assert job.members[0] == member(0, host=9)


def test_a_machine_that_is_always_late_does_not_hide_a_silent_rank() -> None:
    table = new_table()
    job = running(table)
    for second in range(1, 6):
        table.heartbeat(job.id, 0, float(second))
        table.tick(float(second))
    assert (job.state, job.lost) == ("failed", {1: SILENT})


def test_a_rank_that_leaves_while_entries_are_being_installed_fails_the_job() -> None:
    table = new_table()
    job = create_leased(table, 1, 2, "", 0.0)
    table.register(job.id, member(0), 0.0)
    table.leave(job.id, 0, 0.0)
    assert job.state == "failed"
    install, remove = table.switches.effects
    assert isinstance(install, Install)
    assert isinstance(remove, Remove)
    carry_out(table, 0.0)
    assert job.state == "failed"
    assert table.switches.pools["s1"].free == 64


def test_a_rank_that_has_left_is_not_lost_when_it_stops_beating() -> None:
    table = new_table()
    job = running(table)
    table.leave(job.id, 0, 0.1)
    for tenth in range(1, 60):
        table.heartbeat(job.id, 1, tenth / 10)
        table.tick(tenth / 10)
    assert (job.state, job.gone) == ("running", {0: "left"})
    with pytest.raises(ConflictError, match="rank 0 has left"):
        table.heartbeat(job.id, 0, 6.0)


def test_a_lost_rank_is_told_beside_those_that_left() -> None:
    table = new_table()
    job = running(table, workers=3)
    table.leave(job.id, 0, 0.1)
    table.leave(job.id, 2, 0.2, "chunk 8: bad checksum")
    assert job.gone == {0: "left", 2: "chunk 8: bad checksum"}
    assert job.reason == "rank 2 (10.0.0.3): chunk 8: bad checksum"


def test_a_joining_job_survives_a_switch_restart_and_a_half_installed_one_is_installed_again() -> None:
    table = new_table()
    waiting = create_leased(table, 2, 2, "", 0.0)
    table.register(waiting.id, member(0), 0.0)
    complete = create_leased(table, 1, 2, "", 0.0)
    table.register(complete.id, member(0), 0.0)
    stale = table.switches.effects.popleft()
    table.switches.lost("s1", 1.0)
    table.switches.done(stale, 1.0)
    assert (waiting.state, complete.state) == ("joining", "joining")
    table.switches.connected("s1")
    carry_out(table, 2.0)
    assert (waiting.state, complete.state) == ("joining", "running")


@pytest.mark.parametrize(
    ("joined", "away", "reason"),
    [
        (1, False, "ranks [1] did not join in time"),
        (2, True, "switch s1 is not connected"),
        (1, True, "ranks [1] did not join in time; switch s1 is not connected"),
        (2, False, "its entries were not in the switches in time"),
    ],
)
def test_a_job_that_does_not_run_in_time_says_what_is_missing(joined: int, away: bool, reason: str) -> None:
    table = new_table()
    job = create_leased(table, 2, 4, "", 0.0)
    if away:
        table.switches.lost("s1", 1.0)
    for rank in range(joined):
        table.register(job.id, member(rank), 19.0)
    table.tick(20.0)
    assert (job.state, job.reason) == ("failed", reason)


def test_a_lost_switch_frees_what_waited_for_removal() -> None:
    table = new_table()
    job = running(table, slots=32)
    table.end(job.id, 1.0)
    assert table.switches.pools["s1"].free == 0
    table.switches.lost("s1", 1.0)
    assert table.switches.pools["s1"].free == 64
    assert not table.switches.effects


def test_ended_jobs_are_forgotten_after_a_while_and_above_a_number() -> None:
    table = new_table(max_ended=2)
    numbers = [create_leased(table, 1, 2, "", now).id for now in (0.0, 1.0, 2.0)]
    for now, number in enumerate(numbers):
        table.end(number, float(now))
    table.tick(3.0)
    assert list(table.jobs) == numbers[1:]
    with pytest.raises(UnknownJobError, match="there is no job 1"):
        table.job(numbers[0])
    table.tick(31.5)
    assert list(table.jobs) == numbers[2:]


@pytest.mark.parametrize("limits", [{"max_ended": 4}, {"max_ended_ranks": 8}])
def test_a_host_that_ends_many_jobs_has_only_its_own_forgotten(limits: dict[str, Any]) -> None:
    table = new_table(host_share=0.5, **limits)
    other = create_leased(table, 2, 2, "", 0.0, "10.0.0.2").id
    table.end(other, 0.0)
    for now in (1.0, 2.0, 3.0, 4.0):
        table.end(create_leased(table, 2, 2, "", now, "10.0.0.1").id, now)
    table.tick(5.0)
    assert list(table.jobs) == [other, 4, 5]


def test_job_numbers_are_not_used_again_soon() -> None:
    table = new_table()
    numbers = []
    for now in range(5):
        numbers.append(create_leased(table, 1, 2, "", 100.0 * now).id)
        table.end(numbers[-1], 100.0 * now)
        table.tick(100.0 * now + 50)
    assert numbers == [1, 2, 3, 4, 5]


def test_a_presence_connection_of_a_job_that_is_no_more_says_nothing_of_the_next_with_its_number() -> None:
    table = new_table()
    job = running(table)
    member = table.attend(job.id, 1, 0.0)
    assert table.hear(job.id, member, 1.0)
    other = running(table, now=2.0)
    table._states.jobs[job.id] = other  # the numbers have begun again
    assert not table.hear(job.id, member, 9.0)
    assert other.liveness.last_seen[1] == 2.0
    del table._states.jobs[job.id]
    assert not table.hear(job.id, member, 9.0)
