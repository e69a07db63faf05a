# SPDX-License-Identifier: Apache-2.0
"""Results to the group of a job, in p4/inagg.p4 (docs/protocol.md, 5.3), run in process."""

import pytest

from inagg_switch import Switch
from tests import INAGG_P4
from tests.switch.inagg.packets import (
    AGGREGATOR_IP,
    AGGREGATOR_MAC,
    ALL_RANKS,
    INAGG_PORT,
    Job,
    read_result,
)

Frames = list[tuple[int, bytes]]
TO_THE_GROUP = (0x01005E400003, 0xEFC00003, INAGG_PORT)  # of job 3


def complete(program: Switch, job: Job, chunk: int = 0) -> Frames:
    """All workers contribute to a chunk. Returns what the last contribution leads to; the others lead to nothing."""
    for rank in range(job.workers - 1):
        assert program.process(job.port(rank), job.data(rank, chunk, [1 << rank] * 4)) == []
    last = job.workers - 1
    return program.process(job.port(last), job.data(last, chunk, [1 << last] * 4))


def destination(frame: bytes) -> tuple[int, int, int]:
    result = read_result(frame)
    return result.dst_mac, result.dst_ip, result.dst_port


def of_worker(job: Job, rank: int) -> tuple[int, int, int]:
    return job.mac(rank), job.ip(rank), job.udp_port(rank)


def packets(program: Switch, counter: str, ports: int = 8) -> dict[int, int]:
    return {port: count for port in range(ports) if (count := program.counter(counter)[port][0])}


def test_all_copies_are_equal_and_addressed_to_the_group(program: Switch) -> None:
    job = Job(workers=4, multicast=True)
    job.install(program)
    out = complete(program, job)
    assert [port for port, _ in out] == [1, 2, 3, 4]
    (frame,) = {frame for _, frame in out}
    assert destination(frame) == TO_THE_GROUP
    result = read_result(frame)
    assert (result.src_mac, result.src_ip, result.src_port) == (AGGREGATOR_MAC, AGGREGATOR_IP, INAGG_PORT)
    assert (result.ttl, result.udp_checksum, result.inagg.rank) == (64, 0, 3)
    assert result.words == [0b1111] * 4
    assert packets(program, "result_sent") == {1: 1, 2: 1, 3: 1, 4: 1}


def test_the_payload_is_the_same_as_to_each_worker() -> None:
    found = []
    for job in (Job(workers=3, multicast=True), Job(workers=3)):
        with Switch.from_p4(INAGG_P4, seed=1) as fresh:
            job.install(fresh)
            found.append({frame[42:] for _, frame in complete(fresh, job)})
    assert found[0] == found[1]
    assert len(found[0]) == 1


def test_workers_behind_one_port_share_a_copy(program: Switch) -> None:
    job = Job(workers=5, multicast=True, per_port=2)
    job.install(program)
    out = complete(program, job)
    assert [port for port, _ in out] == [1, 2, 3]
    assert {destination(frame) for _, frame in out} == {TO_THE_GROUP}


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_result_that_is_sent_again_goes_to_the_one_workers_own_address(program: Switch, rank: int) -> None:
    job = Job(workers=3, multicast=True, per_port=2)
    job.install(program)
    (_, first), *_ = complete(program, job)
    ((port, again),) = program.process(job.port(rank), job.data(rank, 0, [1 << rank] * 4))
    assert port == job.port(rank)
    assert destination(again) == of_worker(job, rank)
    assert read_result(again).inagg == read_result(first).inagg._replace(rank=rank)
    assert read_result(again).words == [0b111] * 4
    assert packets(program, "result_resent") == {job.port(rank): 1}


def test_injected_loss_drops_the_copy_of_its_port_only(program: Switch) -> None:
    job = Job(workers=4, multicast=True)
    job.install(program)
    program.insert(
        "egress_loss", {"port": 2, "aggregation": 1}, "inject_egress_loss", {"threshold": 2**32 - 1}
    )
    assert [port for port, _ in complete(program, job)] == [1, 3, 4]
    assert packets(program, "egress_loss_injected") == {2: 1}
    assert packets(program, "result_sent") == {1: 1, 3: 1, 4: 1}


def test_copies_to_a_group_without_an_entry_are_dropped_and_counted(program: Switch) -> None:
    job = Job(workers=3, multicast=True)
    job.install(program)
    program.delete("receiver", {"job": 3, "rank": ALL_RANKS})
    assert complete(program, job) == []
    assert packets(program, "no_receiver") == {1: 1, 2: 1, 3: 1}
    ((_, again),) = program.process(2, job.data(1, 0, [2] * 4))
    assert destination(again) == of_worker(job, 1)


def test_a_group_of_another_job_does_not_help(program: Switch) -> None:
    job = Job(workers=2, number=3, multicast=True)
    other = Job(workers=2, number=4, group=3, slot_base=16, multicast=True)
    job.install(program)
    other.install(program)
    (_, frame), _ = complete(program, other)
    assert destination(frame) == (0x01005E400004, 0xEFC00004, INAGG_PORT)
    program.delete("receiver", {"job": 3, "rank": ALL_RANKS})
    assert complete(program, job) == []


def test_the_next_result_after_the_change_to_unicast_goes_to_each_worker(program: Switch) -> None:
    job = Job(workers=3, multicast=True, per_port=2)
    job.install(program)
    assert len(complete(program, job)) == 2
    job.send_to_each(program)
    out = complete(program, job, chunk=1)
    assert [(port, destination(frame)) for port, frame in out] == [
        (job.port(rank), of_worker(job, rank)) for rank in range(3)
    ]


def test_sixty_four_workers_behind_sixty_four_ports(program: Switch) -> None:
    job = Job(workers=64, multicast=True)
    job.install(program)
    out = complete(program, job, chunk=1)
    assert [port for port, _ in out] == list(range(1, 65))
    (frame,) = {frame for _, frame in out}
    assert destination(frame) == TO_THE_GROUP
    assert read_result(frame).words == [2**64 - 1] * 4
    ((port, again),) = program.process(64, job.data(63, 1, [1 << 63] * 4))
    assert (port, destination(again)) == (64, of_worker(job, 63))
