# SPDX-License-Identifier: Apache-2.0
"""Jobs that lose their way: what they try, and how their ranks meet; in virtual time."""

import time
from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg_controller.configuration import parse_job_classes
from inagg_controller.errors import ConflictError, InvalidRequestError, UnavailableError
from inagg_controller.jobs.change import Change
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.placement import State
from inagg_controller.jobs.record import read_job, record_of
from inagg_controller.jobs.servers import MOST_RANKS, Worker
from inagg_controller.jobs.table import JobTable
from tests.controller.changes import ALL, FIRST, SLOTS, beat, found_by, freeze, go_on, running, worker_beside
from tests.controller.serving import LEAF_SPINE
from tests.controller.tables import (
    carry_out,
    create_leased,
    create_on_servers,
    create_shared,
    member,
    new_table,
)


def test_a_job_goes_on_at_a_switch_that_comes_back() -> None:
    table = new_table()
    job = running(table)
    before = job.placement
    table.switches.lost("s1", 1.0)
    assert job.state == "changing"
    assert before.state is State.GONE
    table.tick(3.9)
    assert job.change is not None
    assert (job.change.found_by, job.change.options[0]) == ("", "same")
    table.switches.connected("s1")
    table.tick(3.95)
    go_on(table, job, 3.95)
    assert job.placement.epoch != before.epoch
    assert job.placement.slots == job.slots == before.slots
    assert (job.changes, job.found_by) == (1, "same")
    table.end(job.id, 4.0)
    carry_out(table, 4.0)
    assert table.switches.pools["s1"].free == table.switches.pools["s1"].size


@pytest.mark.parametrize("slots", [8, 32])
def test_the_slots_of_the_lost_way_are_free_for_the_next(slots: int) -> None:
    """Also of a job that has all slots of the switch, and of one that would get fewer if it were new."""
    table = new_table(slot_versions=64, job_share=1.0)
    job = create_leased(table, 1, slots, on_path_loss=ALL)
    table.register(job.id, member(0), 0.0)
    carry_out(table, 0.0)
    assert job.slots == slots
    table.switches.lost("s1", 1.0)
    table.switches.connected("s1")
    table.tick(1.0)
    assert job.change is not None
    assert (job.change.found_by, job.placement.slots) == ("same", slots)


def test_a_job_goes_on_at_the_other_spine_once_its_own_stays_away() -> None:
    table = new_table(topology=LEAF_SPINE)
    job = running(table)
    assert "spine2" in job.placement.tree.by_name
    table.switches.lost("spine2", 1.0)
    table.tick(3.9)
    assert found_by(job) == ""
    table.tick(4.0)
    assert found_by(job) == "other"
    assert job.change is not None
    assert job.change.tried == {"same": "switch spine2 is not connected"}
    assert "spine2" not in job.placement.tree.by_name
    go_on(table, job, 4.0)


def test_a_job_whose_link_is_down_avoids_it() -> None:
    table = new_table(topology=LEAF_SPINE)
    job = running(table, ("other",))
    (link, *_) = job.placement.tree.links.values()
    table.switches.link_down(link, 1.0, "cut")
    table.tick(1.0)
    assert link not in job.placement.tree.links.values()
    go_on(table, job, 1.0)


def test_a_job_goes_on_at_the_servers_of_its_ranks_once_all_have_said_where_they_are() -> None:
    table = new_table()
    job = running(table, ("servers", "fail"))
    table.switches.lost("s1", 1.0)
    table.tick(1.0)
    freeze(table, job, 1.0, ranks=[1])
    table.tick(1.5)
    assert found_by(job) == ""
    freeze(table, job, 2.0, ranks=[0])
    table.tick(2.0)
    assert job.placement.servers is not None
    assert [seat.udp_port for seat in job.placement.servers.seats] == [5000, 5000]
    go_on(table, job, 2.0)
    assert job.placement.aggregation == "server"
    first, second = job.ways
    assert (first.since, first.title, first.aggregation, first.reason) == (0.0, "s1", "leased", "")
    assert (second.since, second.title, second.aggregation) == (2.0, "2 colocated servers", "server")
    assert ("s1" in second.reason, second.taken_s) == (True, 1.0)


def test_ranks_sum_themselves_once_all_have_frozen() -> None:
    table = new_table(classes=parse_job_classes(["one,aggregation=leased"]))
    job = create_leased(table, 2, SLOTS, on_path_loss=("inner", "fail"), job_class="one")
    for rank in range(2):
        table.register(job.id, member(rank), 0.0)
    carry_out(table, 0.0)
    table.switches.lost("s1", 1.0)
    freeze(table, job, 1.0, ranks=[1])
    table.tick(1.5)
    assert found_by(job) == ""
    freeze(table, job, 2.0, ranks=[0])
    table.tick(2.0)
    go_on(table, job, 2.0)
    placement = job.placement
    assert (placement.aggregation, placement.title) == ("inner", "the inner group")
    assert (placement.leases, placement.group, placement.servers) == ({}, None, None)
    table.end(job.id, 4.0)
    assert placement.freed


def test_ranks_that_do_not_reach_each_other_have_tried_everything_twice() -> None:
    table = new_table()
    job = running(table, ("same", "servers", "inner", "fail"))
    table.changing.report_loss(job, job.placement.epoch, "it is silent", 1.0)
    seen = []
    now = 1.0
    while job.state == "changing":
        freeze(table, job, now)
        table.tick(now)
        seen.append(found_by(job))
        if seen[-1] == "inner":  # no rank goes on
            table.changing.report_loss(job, job.placement.epoch, "rank 1 does not reach the others", now)
        else:
            go_on(table, job, now)
            now += 10.0
            table.changing.report_loss(job, job.placement.epoch, "it is silent", now)
    assert seen == ["same", "servers", "inner"] * 2
    assert job.reason is not None
    assert job.reason.endswith("then it is silent; then it is silent; then rank 1 does not reach the others")


def test_more_ranks_than_servers_take_sum_themselves() -> None:
    table = new_table(topology=LEAF_SPINE)
    job = running(table, ("servers", "inner"), workers=MOST_RANKS + 1)
    table.switches.lost("spine1", 1.0)
    freeze(table, job, 1.0)
    table.tick(1.0)
    assert found_by(job) == "inner"
    assert job.change is not None
    assert job.change.tried == {"servers": "workers is 65; a job on servers has 1 to 64"}


@pytest.mark.parametrize("beside", [[], [1], [0, 1]])
def test_servers_are_beside_the_switches_if_all_ranks_are_there(beside: list[int]) -> None:
    """They are also after the next loss, and where the controller was started again."""
    table = new_table()
    job = running(table, ("same", "servers"))
    table.switches.lost("s1", 1.0)
    freeze(table, job, 1.0, beside=beside)
    table.tick(5.0)
    assert found_by(job) == "servers"
    go_on_beside(table, job, beside)
    epoch = job.placement.epoch
    table.changing.report_loss(job, epoch, "a server does not answer", 90.0)
    freeze(table, job, 90.0, beside=beside)
    table.tick(90.0)
    assert found_by(job) == "same"
    assert job.placement.epoch != epoch
    go_on_beside(table, job, beside)
    restored = read_job(record_of(job)).placement.servers
    assert restored is not None
    assert dict(restored.beside) == seats_beside(beside)


def seats_beside(beside: Sequence[int]) -> dict[int, Worker]:
    return {rank: worker_beside(rank) for rank in beside} if len(beside) == 2 else {}


def go_on_beside(table: JobTable, job: Job, beside: Sequence[int]) -> None:
    share = job.placement.servers
    assert share is not None
    ips = [0x0A000101, 0x0A000102] if len(beside) == 2 else [job.members[rank].ip for rank in range(2)]
    port = 7000 if len(beside) == 2 else 5000
    assert [(seat.ip, seat.udp_port) for seat in share.seats] == [(ip, port) for ip in ips]
    assert share.beside == seats_beside(beside)
    for rank in range(2):
        table.serve(job.id, rank, 5.0)
    for rank in range(2):
        table.changing.resume(job, rank, job.placement.epoch, 5.0)
    assert job.state == "running"


def test_servers_that_are_dead_beside_the_switches_too_are_where_the_ranks_have_registered() -> None:
    """As where only the controller is reached there."""
    table = new_table()
    job = running(table, ("same", "servers"))
    table.switches.lost("s1", 1.0)
    freeze(table, job, 1.0, beside=[0, 1])
    table.tick(5.0)
    go_on_beside(table, job, [0, 1])
    table.changing.report_loss(job, job.placement.epoch, "a server does not answer", 20.0)
    freeze(table, job, 20.0, beside=[0, 1])
    table.tick(20.0)
    assert found_by(job) == "servers"
    go_on_beside(table, job, [])
    table.changing.report_loss(job, job.placement.epoch, "a server does not answer", 30.0)
    assert job.change is not None
    assert (job.change.options, job.second_round) == (["same", "servers"], True)


def test_two_ranks_cannot_have_one_endpoint_beside_the_switches() -> None:
    table = new_table()
    job = running(table)
    table.switches.lost("s1", 1.0)
    freeze(table, job, 1.0, [0], beside=[0])
    assert job.change is not None
    job.change.check_beside(worker_beside(0))
    job.change.check_beside(worker_beside(1))
    for wrong in (replace(worker_beside(0), rank=1), replace(worker_beside(1), server_udp_port=6000)):
        with pytest.raises(ConflictError, match="another endpoint of rank 1"):
            job.change.check_beside(wrong)


def test_a_job_that_finds_no_way_says_what_it_has_tried() -> None:
    table = new_table()
    job = running(table)
    table.switches.lost("s1", 1.0)
    for tenth in range(10, 310):
        beat(table, job, tenth / 10)
        table.tick(tenth / 10)
    assert job.state == "changing"
    table.tick(31.0)
    assert job.state == "failed"
    assert job.reason == (
        "switch s1 was lost: the sums in its slots are gone; nothing else sums for it within 30 s; tried: same (switch "
        "s1 is not connected), other (switch s1 is not connected; try again in a moment), servers (ranks 0 "
        "(10.0.0.1), 1 (10.0.0.2) cannot be reached)"
    )


@pytest.mark.parametrize("back", ["switch", "ranks"])
def test_a_job_takes_whatever_comes_first_once_all_has_been_tried(back: str) -> None:
    table = new_table()
    job = running(table)
    table.switches.lost("s1", 1.0)
    for second in range(1, 20):
        beat(table, job, second)
        table.tick(second)
    assert job.change is not None
    assert job.change.options == ["fail"]
    if back == "switch":
        table.switches.connected("s1")
    else:
        freeze(table, job, 20.0)
    table.tick(20.0)
    assert found_by(job) == {"switch": "same", "ranks": "servers"}[back]
    go_on(table, job, 20.0)


def test_a_rank_that_cannot_serve_rules_servers_out() -> None:
    table = new_table()
    job = running(table, ("servers",))
    table.switches.lost("s1", 1.0)
    assert job.change is not None
    for rank, port in enumerate([5000, None]):
        table.changing.publish(job, rank, job.change.lost, FIRST, port, 1.0)
    table.tick(1.0)
    assert job.state == "failed"
    assert job.reason is not None
    assert job.reason.endswith("tried: servers (rank 1 (10.0.0.2) cannot serve)")


@pytest.mark.parametrize("option", ["same", "other"])
@pytest.mark.parametrize("early", [True, False])
def test_a_way_on_the_servers_of_ranks_needs_their_ports(option: str, early: bool) -> None:
    """early: a rank says that it cannot serve before the way is found; else afterwards, and the way is lost, too."""
    table = new_table(shared_slots=16)
    job = create_shared(table, 2, SLOTS, on_path_loss=(option,))
    for rank in range(2):
        table.register(job.id, replace(member(rank), server_udp_port=5000), 0.0)
        carry_out(table, 0.0)
    for rank in range(2):
        table.serve(job.id, rank, 0.0)
    assert job.state == "running"
    table.switches.lost("s1", 1.0)
    assert job.change is not None
    lost = job.change.lost
    table.changing.publish(job, 0, lost, FIRST, 5000, 1.0)
    if early:
        table.changing.publish(job, 1, lost, FIRST, None, 1.0)
    table.switches.connected("s1")
    table.changing.advance_all(1.0)
    if early:
        assert job.state == "failed"
        assert job.reason is not None
        assert job.reason.endswith(f"tried: {option} (rank 1 (10.0.0.2) cannot serve)")
        return
    with pytest.raises(ConflictError, match="another endpoint of job 1 has the UDP port 4000 there"):
        table.changing.publish(job, 1, lost, FIRST, 4000, 1.0)
    table.changing.publish(job, 1, lost, FIRST, None, 1.0)
    assert job.state == "changing"
    assert job.change.lost != lost
    assert job.change.reason == "rank 1 (10.0.0.2) cannot serve"
    go_on(table, job, 1.0)


def test_ranks_cannot_go_on_before_all_is_ready() -> None:
    table = new_table()
    job = running(table)
    table.switches.lost("s1", 1.0)
    table.switches.connected("s1")
    table.changing.advance_all(1.0)
    epoch = job.placement.epoch
    with pytest.raises(ConflictError, match="does not go on"):
        table.changing.resume(job, 0, epoch, 1.0)
    freeze(table, job, 1.0)
    with pytest.raises(ConflictError, match="does not go on"):  # the entries are not in
        table.changing.resume(job, 0, epoch, 1.0)
    carry_out(table, 1.0)
    table.changing.resume(job, 0, epoch, 1.0)


def test_nobody_takes_the_place_of_a_job_whose_switch_comes_back() -> None:
    """Nor its part of the quotas."""
    table = new_table(slot_versions=8, classes=parse_job_classes(["one,jobs=1"]), job_share=1.0)
    job = create_leased(table, 1, SLOTS, on_path_loss=ALL, job_class="one")
    table.register(job.id, member(0), 0.0)
    carry_out(table, 0.0)
    table.switches.lost("s1", 1.0)
    with pytest.raises(UnavailableError, match="its quota is jobs=1"):
        create_on_servers(table, 1, SLOTS, job_class="one")
    table.switches.connected("s1")
    table.changing.advance_all(1.0)  # as the service does at once
    with pytest.raises(UnavailableError, match="the slot pool of switch s1 is full"):
        create_leased(table, 1, SLOTS)
    go_on(table, job, 1.0)


def test_a_switch_that_refuses_the_way_makes_the_job_try_the_next_option() -> None:
    table = new_table()
    job = running(table, ("same", "servers"))
    table.switches.lost("s1", 1.0)
    table.switches.connected("s1")
    table.changing.advance_all(1.0)
    assert found_by(job) == "same"
    table.switches.done(table.switches.effects.popleft(), 1.0, "table full")
    table.tick(1.0)
    freeze(table, job, 1.0)
    carry_out(table, 1.0)
    table.tick(1.0)
    assert found_by(job) == "servers"
    assert job.change is not None
    assert job.change.reason == (
        "switch s1 was lost: the sums in its slots are gone; then the switch refused the job's entries: table full"
    )
    go_on(table, job, 1.0)


def test_many_ranks_and_slots_are_compared_soon() -> None:
    """In the event loop, which all jobs share."""
    workers, slots = 64, 1 << 16
    change = change_of(workers, slots)
    chunks = [array("I", range(slots)), array("I", range(slots, 2 * slots))]
    for rank in range(workers):
        change.publish(rank, chunks[rank % 2], None)
    began = time.process_time()
    change.publish(0, chunks[0], None)  # a repeated request does not compare again
    assert time.process_time() - began < 0.1
    assert len(change.lacks(2)) == slots
    change.give(1, dict.fromkeys(range(slots), b"result"))
    assert change.gives(1) == []


@pytest.mark.parametrize("on_path_loss", [(), ("fail",), ("fail", "same")])
def test_a_job_that_may_not_change_its_way_fails(on_path_loss: Sequence[str]) -> None:
    table = new_table()
    job = running(table, on_path_loss)
    table.switches.lost("s1", 1.0)
    assert (job.state, job.reason) == ("failed", "switch s1 was lost: the sums in its slots are gone")


def test_a_job_that_a_rank_has_left_fails() -> None:
    """The others may lack its last results."""
    table = new_table()
    job = running(table)
    table.leave(job.id, 1, 0.5)
    table.switches.lost("s1", 1.0)
    assert job.state == "failed"


def test_a_rank_that_is_lost_or_gives_up_while_the_way_changes_ends_the_job() -> None:
    table = new_table()
    for gives_up in (True, False):
        job = running(table)
        table.heartbeat(job.id, 0, 0.5)
        table.switches.lost("s1", 1.0)
        if gives_up:
            table.leave(job.id, 1, 1.0, "broken")
        else:
            for tenth in range(10, 60):
                table.heartbeat(job.id, 0, tenth / 10)
                table.tick(tenth / 10)
        assert job.state == "failed"
        assert list(job.lost) == [1]
        table.switches.connected("s1")


def test_the_next_way_may_be_lost_before_all_ranks_are_there() -> None:
    table = new_table()
    job = running(table)
    table.switches.lost("s1", 1.0)
    table.switches.connected("s1")
    table.tick(1.0)
    freeze(table, job, 1.0)
    carry_out(table, 1.0)
    first = job.placement.epoch
    table.changing.resume(job, 0, first, 1.0)
    table.switches.lost("s1", 1.1)
    assert job.change is not None
    assert (job.change.lost, job.change.published, job.change.resumed) == (first, {}, set())
    with pytest.raises(ConflictError, match="has not just lost the way of epoch"):
        table.changing.publish(job, 0, first - 1, FIRST, 5000, 1.1)
    with pytest.raises(ConflictError, match="does not go on"):
        table.changing.resume(job, 1, first, 1.1)
    table.switches.connected("s1")
    table.tick(1.2)
    go_on(table, job, 1.2)


def test_a_change_takes_no_longer_than_half_a_minute_however_many_ways_are_lost() -> None:
    table = new_table()
    job = running(table)
    now = 1.0
    while job.state != "failed" and now < 60:
        table.switches.lost("s1", now)
        table.switches.connected("s1")
        for _ in range(20):
            now += 0.1
            beat(table, job, now) if not job.ended else None
            table.tick(now)
    assert now <= 33
    assert job.reason is not None
    assert "ranks 0 (10.0.0.1), 1 (10.0.0.2) did not stop to change the way within 30 s" in job.reason


def test_a_way_that_ranks_find_dead_again_soon_gives_way_to_the_next_option() -> None:
    table = new_table()
    job = running(table)
    tried = []
    now = 0.0
    for _ in range(6):
        now += 10.0
        beat(table, job, now)
        table.changing.report_loss(job, job.placement.epoch, "it does not answer", now)
        table.changing.report_loss(job, job.placement.epoch - 1, "neither does that", now)
        freeze(table, job, now)
        carry_out(table, now)
        table.tick(now)
        go_on(table, job, now)
        tried.append(job.found_by)
    assert tried == ["same", "other", "servers"] * 2
    table.changing.report_loss(job, job.placement.epoch, "nor that", now)
    assert job.state == "failed"
    assert job.reason is not None
    assert job.reason.startswith("it does not answer; then ")
    assert job.reason.endswith("; then nor that")


def test_a_report_about_an_earlier_way_changes_nothing() -> None:
    table = new_table()
    job = running(table)
    table.changing.report_loss(job, job.placement.epoch - 1, "it was dead", 1.0)
    assert job.state == "running"


def test_a_job_on_registered_servers_waits_for_its_server_and_then_uses_another() -> None:
    table = new_table()
    a, b = (
        table.servers.register(name, 0x0A000100 + ip, 18754, 1 << 20, 0.0)
        for ip, name in enumerate(("a", "b"))
    )
    job = create_on_servers(table, 1, SLOTS, colocated=False, on_path_loss=ALL)
    table.register(job.id, Worker(rank=0, ip=0x0A000001, udp_port=4000), 0.0)
    for server in (a, b):
        table.servers.heartbeat(server.name, server.instance, 0.0, [job.placement.key])
    assert job.state == "running"
    table.servers.stop("a", a.instance, 1.0)
    assert job.state == "changing"
    assert table.servers.orders("b", b.instance) == []
    table.tick(3.9)
    assert found_by(job) == ""
    table.tick(4.0)
    assert found_by(job) == "other"
    assert job.change is not None
    assert job.change.tried == {"same": "server a is gone"}
    table.changing.publish(job, 0, job.change.lost, FIRST, None, 4.0)
    assert table.servers.orders("b", b.instance) == [job]
    table.servers.heartbeat("b", b.instance, 4.0, [job.placement.key])
    assert table.changing.ready(job)
    table.changing.resume(job, 0, job.placement.epoch, 4.0)
    assert job.state == "running"
    table.end(job.id, 4.0)
    table.servers.heartbeat("b", b.instance, 4.0)
    assert b.free == b.memory


def change_of(workers: int, slots: int = SLOTS) -> Change:
    return Change(
        lost=1,
        reason="",
        began=0.0,
        began_unbroken=0.0,
        deadline=30.0,
        since=0.0,
        options=[],
        workers=workers,
        slots=slots,
    )


@given(
    start=st.sampled_from([0, 1000, 2**32 - 6]),
    ahead=st.lists(st.sets(st.integers(0, SLOTS - 1)), min_size=1, max_size=5),
)
def test_each_rank_gets_what_it_lacks_from_one_that_has_it(start: int, ahead: list[set[int]]) -> None:
    """ahead: the slots in which each rank is a chunk ahead; chunk numbers may begin again."""
    change = change_of(len(ahead))
    for rank, slots in enumerate(ahead):
        chunks = ((start + slot + SLOTS * (slot in slots)) % 2**32 for slot in range(SLOTS))
        assert not change.frozen
        change.publish(rank, array("I", chunks), None)
    assert change.frozen
    given_by = {chunk: rank for rank in range(len(ahead)) for chunk in change.gives(rank)}
    for rank, slots in enumerate(ahead):
        others = set().union(*ahead) - slots
        lacked = {(start + slot) % 2**32 for slot in others}
        assert set(change.lacks(rank)) == lacked
        for chunk in lacked:
            assert (chunk - start) % 2**32 in ahead[given_by[chunk]]
    for chunk, rank in given_by.items():
        change.give(rank, {chunk: b"result"})
        change.give(rank, {chunk: b"result"})  # the answer was lost
        assert chunk not in change.gives(rank)


def test_what_cannot_be_is_refused() -> None:
    change = change_of(2)
    with pytest.raises(InvalidRequestError, match="chunks has 3 numbers; the job has 4 slots"):
        change.publish(0, FIRST[:3], None)
    change.publish(0, FIRST, None)
    change.publish(0, FIRST, None)
    with pytest.raises(ConflictError, match="rank 0 has published other chunks"):
        change.publish(0, array("I", [4, 1, 2, 3]), None)
    with pytest.raises(ConflictError, match=r"ranks are at the chunks \[0, 8\] of one slot"):
        change.publish(1, array("I", [8, 1, 2, 3]), None)
    with pytest.raises(ConflictError, match="no rank needs chunk 0 from rank 0"):
        change.give(0, {0: b"result"})


def test_ranks_that_are_too_far_apart_end_the_job() -> None:
    table = new_table()
    job = running(table)
    table.switches.lost("s1", 1.0)
    assert job.change is not None
    lost = job.change.lost
    table.changing.publish(job, 0, lost, FIRST, 5000, 1.0)
    with pytest.raises(ConflictError):
        table.changing.publish(job, 1, lost, array("I", [8, 1, 2, 3]), 5000, 1.0)
    assert job.state == "failed"
