# SPDX-License-Identifier: Apache-2.0
"""Slots, sums and delivery of p4/inagg.p4 (docs/protocol.md, 5.2 and 5.3), run in process."""

import random

import pytest

from inagg_switch import Switch
from tests import INAGG_P4
from tests.switch.inagg.packets import (
    AGAIN,
    AGGREGATOR_IP,
    AGGREGATOR_MAC,
    DATA,
    EXPONENT,
    EXPONENT_CHECK,
    INAGG_PORT,
    QUERY,
    RESULT,
    Inagg,
    Job,
    read_result,
)

MODULUS = 1 << 2048
REGISTERS = ("slot_epoch", "slot_chunk", "slot_members", "slot_final", "slot_header")
COUNTERS = (
    "started", "added", "completed", "result_resent", "duplicate_pending", "stale", "ahead", "malformed",
    "query_again", "query_held", "query_passed", "answer_passed",
    "partial_sent", "partial_resent", "no_parent", "result_kept", "result_duplicate", "result_unexpected",
    "not_admitted", "wrong_epoch", "result_sent", "no_receiver", "ingress_loss_injected",
    "egress_loss_injected", "not_ethernet", "own_port", "aggregator_forged", "source_refused", "vlan_tagged",
)  # fmt: skip


def counts(program: Switch, ports: int = 8) -> dict[str, dict[int, int]]:
    """Packets of each counter that is not zero, by port."""
    found: dict[str, dict[int, int]] = {}
    for name in COUNTERS:
        counter = program.counter(name)
        cells = {port: counter[port][0] for port in range(ports) if counter[port][0]}
        if cells:
            found[name] = cells
    return found


def sum_chunks(program: Switch, job: Job, first: int, last: int) -> None:
    """All workers contribute the chunks `first` to `last`."""
    for chunk in range(first, last + 1):
        for rank in range(job.workers):
            program.process(rank + 1, job.data(rank, chunk, [chunk] * 4))


def summed_before(program: Switch, job: Job, chunk: int) -> None:
    """Sets the registers as if the job had summed all chunks before `chunk`, in both versions of each slot."""
    for past in range(chunk - 2 * job.slots, chunk):
        version = job.slot_base + past % (2 * job.slots)
        program.register("slot_epoch")[version] = job.epoch
        program.register("slot_chunk")[version] = past % 2**32
        program.register("slot_members")[version] = (1 << job.workers) - 1
        program.register("slot_final")[version] = 1


def lease(program: Switch, job: Job) -> list[int]:
    """The contents of the job's slot versions."""
    versions = range(job.slot_base, job.slot_base + 2 * job.slots)
    held = [program.register(name)[version] for name in REGISTERS for version in versions]
    return held + [program.register("pool")[4 * version + word] for version in versions for word in range(4)]


def words_of(seed: int, count: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.getrandbits(2048) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 4, 5, 32])
def test_every_word_of_the_sum_is_right(count: int) -> None:
    with Switch.from_p4(INAGG_P4, {"WORDS": str(count)}) as program:
        job = Job(workers=3)
        job.install(program)
        sent = [words_of(rank, count) for rank in range(3)]
        assert program.process(1, job.data(0, 0, sent[0])) == []
        assert program.process(2, job.data(1, 0, sent[1])) == []
        out = program.process(3, job.data(2, 0, sent[2]))
    expected = [sum(column) % MODULUS for column in zip(*sent, strict=True)]
    assert [port for port, _ in out] == [1, 2, 3]
    for _, frame in out:
        assert read_result(frame).words == expected


def test_a_carry_runs_through_the_whole_word_and_is_lost_at_its_end(program: Switch) -> None:
    job = Job(workers=2)
    job.install(program)
    program.process(1, job.data(0, 0, [MODULUS - 1, 1, 2**64 - 1, MODULUS - 2**2000]))
    (_, frame), _ = program.process(2, job.data(1, 0, [1, MODULUS - 1, 1, 2**2000 + 5]))
    assert read_result(frame).words == [0, 0, 2**64, 5]


def test_the_result_header_is_computed_from_the_contributions(program: Switch) -> None:
    job = Job(workers=2)
    job.install(program)
    program.process(1, job.data(0, 5, [0] * 4, exponent=300, flags=0x01, checksum=0xFFFFFFFF))
    out = program.process(2, job.data(1, 5, [0] * 4, exponent=290, flags=0x02, checksum=3))
    results = [read_result(frame) for _, frame in out]
    assert [r.inagg for r in results] == [
        Inagg(4, RESULT | DATA, 1, 3, 0x03, 300, 0x03, 300 + EXPONENT_CHECK, 7, 5, 2)
    ] * 2


def test_each_copy_is_addressed_to_its_receiver(program: Switch) -> None:
    job = Job(workers=4)
    job.install(program)
    for rank in range(3):
        assert program.process(rank + 1, job.data(rank, 0, [rank] * 4)) == []
    out = program.process(4, job.data(3, 0, [3] * 4))
    assert len({frame[42:] for _, frame in out}) == 1
    for rank, (port, frame) in enumerate(out):
        result = read_result(frame)
        assert port == rank + 1
        assert (result.dst_mac, result.dst_ip, result.dst_port) == (
            job.mac(rank), job.ip(rank), job.udp_port(rank))  # fmt: skip
        assert (result.src_mac, result.src_ip, result.src_port) == (AGGREGATOR_MAC, AGGREGATOR_IP, INAGG_PORT)
        assert (result.ttl, result.udp_checksum, result.inagg.rank) == (64, 0, 3)


def test_an_exponent_chunk_has_no_words(program: Switch) -> None:
    job = Job(workers=2)
    job.install(program)
    program.process(1, job.exponent(0, 0, exponent=5, checksum=40))
    out = program.process(2, job.exponent(1, 0, exponent=9, checksum=40))
    result = read_result(out[0][1])
    assert result.words == []
    assert (result.inagg.kind, result.inagg.exponent, result.inagg.checksum) == (RESULT | EXPONENT, 9, 80)


def test_one_worker_gets_its_own_contribution_back_at_once(program: Switch) -> None:
    job = Job(workers=1)
    job.install(program)
    ((port, frame),) = program.process(1, job.data(0, 0, [1, 2, 3, 4]))
    assert port == 1
    assert read_result(frame).words == [1, 2, 3, 4]
    assert counts(program) == {"started": {1: 1}, "completed": {1: 1}, "result_sent": {1: 1}}


# Rows of the decision table in docs/protocol.md, 5.2, for three workers and eight slots. Before, in epoch 7, all have
# contributed chunk 5, and rank 0 chunk 13, except in the row that starts a chunk. Each row has one more packet (rank,
# chunk, epoch) and the counter that it increments. Rows that send a packet have separate tests.
ROWS = {
    "start: the chunk before in the slot is complete": ((0, 13, 7), "started"),
    "start: another epoch is there": ((1, 5, 8), "started"),
    "ahead: another epoch is there, but this one's first chunk of the slot is not complete": (
        (1, 13, 8),
        "ahead",
    ),
    "ahead: another epoch is there, the chunk is older": ((1, 5 - 16, 8), "ahead"),
    "ahead: the chunk before in the slot is not complete": ((0, 21, 7), "ahead"),
    "ahead: the chunk before in the slot is not there": ((0, 29, 7), "ahead"),
    "ahead: no chunk is in the slot": ((0, 6 + 16, 7), "ahead"),
    "add: the same chunk without the worker's bit": ((1, 13, 7), "added"),
    "duplicate: the bit is set and others are missing": ((0, 13, 7), "duplicate_pending"),
    "stale: a newer chunk is there": ((1, 5 - 16, 7), "stale"),
    "stale: a newer chunk is there, and the worker has contributed to chunk 13 too": (
        (0, 5 - 16, 7),
        "stale",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_decision_table(program: Switch, row: str) -> None:
    (rank, chunk, epoch), counter = ROWS[row]
    job = Job(workers=3)
    job.install(program)
    sum_chunks(program, job, 5, 5)
    if counter != "started":
        program.process(1, job.data(0, 13, [1] * 4))
    if epoch != 7:
        for old in range(3):
            program.delete("admission", job.key(old))
            program.delete("receiver", {"job": 3, "rank": old})
        job = Job(workers=3, epoch=epoch)
        job.install(program)
    others = counts(program)
    before = program.counter(counter)[rank + 1][0]
    assert program.process(rank + 1, job.data(rank, chunk % 2**32, [2] * 4)) == []
    others.setdefault(counter, {})[rank + 1] = before + 1
    assert counts(program) == others


def test_a_contribution_that_is_ahead_changes_nothing(program: Switch) -> None:
    job = Job(workers=2)
    job.install(program)
    sum_chunks(program, job, 5, 5)
    held = lease(program, job)
    program.process(1, job.data(0, 21, [9] * 4, checksum=9))
    program.process(1, job.data(0, 6 + 8, [9] * 4, checksum=9))
    assert counts(program)["ahead"] == {1: 2}
    assert lease(program, job) == held


def test_the_last_add_completes(program: Switch) -> None:
    job = Job(workers=2)
    job.install(program)
    program.process(1, job.data(0, 5, [1] * 4))
    assert len(program.process(2, job.data(1, 5, [1] * 4))) == 2
    assert counts(program) == {
        "started": {1: 1}, "added": {2: 1}, "completed": {2: 1}, "result_sent": {1: 1, 2: 1}}  # fmt: skip


@pytest.mark.parametrize("chunk", [0, 1, 0x1234FFFF, 0xFFFFFFFF])
def test_a_result_is_identified_by_its_chunk(program: Switch, chunk: int) -> None:
    """Results of consecutive chunks can then be segments of one large datagram (2)."""
    job = Job(workers=1, epoch=8)
    job.install(program)
    summed_before(program, job, chunk)
    [(_, frame)] = program.process(1, job.data(0, chunk, [1, 2, 3, 4], epoch=8))
    assert read_result(frame).inagg.chunk == chunk
    assert frame[18:20] == (chunk & 0xFFFF).to_bytes(2, "big")


def test_only_the_sender_of_a_duplicate_gets_a_completed_result_again(program: Switch) -> None:
    job = Job(workers=2)
    job.install(program)
    program.process(1, job.data(0, 5, [10, 20, 30, 40], exponent=3, checksum=100, flags=1))
    out = program.process(2, job.data(1, 5, [1, 2, 3, 4], exponent=4, checksum=10))
    again = program.process(1, job.data(0, 5, [10, 20, 30, 40], exponent=3, checksum=100, flags=1))
    rank_at = 42 + 1
    assert again == [
        (1, out[0][1][:rank_at] + b"\0" + out[0][1][rank_at + 1 :])
    ]  # the rank is that of the sender
    assert counts(program)["result_resent"] == {1: 1}


@pytest.mark.parametrize("kind", [EXPONENT, DATA])
def test_a_query_is_answered_to_its_sender_and_changes_nothing(program: Switch, kind: int) -> None:
    job = Job(workers=2)
    job.install(program)

    def contribute(rank: int) -> None:
        program.process(rank + 1, job.data(rank, 5, [10] * 4) if kind == DATA else job.exponent(rank, 5))

    def ask(rank: int) -> int:
        """Returns the flags of the answer."""
        held = lease(program, job)
        ((port, frame),) = program.process(rank + 1, job.query(rank, 5, 0x12345678, kind))
        assert port == rank + 1
        assert (len(frame), frame[:6]) == (62, job.mac(rank).to_bytes(6, "big"))
        answer = Inagg(kind=kind | QUERY | RESULT, rank=rank, chunk=5, checksum=0x12345678)
        assert lease(program, job) == held
        return {answer._replace(flags=flags).encode(): flags for flags in (0, AGAIN)}[frame[42:]]

    contribute(0)
    assert [ask(0), ask(1)] == [0, AGAIN]
    contribute(1)
    assert [ask(0), ask(1)] == [AGAIN, AGAIN]
    assert (counts(program)["query_held"], counts(program)["query_again"]) == ({1: 1}, {1: 1, 2: 2})


def test_the_other_version_of_a_slot_is_untouched_by_the_next_round(program: Switch) -> None:
    job = Job(workers=2, slots=8)
    job.install(program)
    for chunk in (5, 13):
        program.process(1, job.data(0, chunk, [chunk] * 4))
        assert len(program.process(2, job.data(1, chunk, [chunk] * 4))) == 2
    ((_, frame),) = program.process(1, job.data(0, 5, [5] * 4))
    assert read_result(frame).words == [10] * 4


def test_a_packet_of_the_round_before_the_last_is_stale(program: Switch) -> None:
    job = Job(workers=2, slots=8)
    job.install(program)
    sum_chunks(program, job, 5, 5)
    sum_chunks(program, job, 13, 13)
    program.process(1, job.data(0, 21, [1] * 4))
    assert program.process(2, job.data(1, 5, [1] * 4)) == []
    assert counts(program)["stale"] == {2: 1}
    assert program.register("slot_chunk")[5] == 21


def test_chunk_numbers_wrap(program: Switch) -> None:
    job = Job(workers=2, slots=8)
    job.install(program)
    last = 2**32 - 1
    summed_before(program, job, last)
    program.process(1, job.data(0, last, [1] * 4))
    assert program.process(1, job.data(0, 7, [4] * 4)) == []
    program.process(2, job.data(1, last, [1] * 4))
    for chunk in (7, 15):
        program.process(1, job.data(0, chunk, [4] * 4))
        (_, frame), _ = program.process(2, job.data(1, chunk, [5] * 4))
        assert read_result(frame).words == [9] * 4
    assert program.process(2, job.data(1, last, [1] * 4)) == []
    assert (counts(program)["ahead"], counts(program)["stale"]) == ({1: 1}, {2: 1})


def test_jobs_do_not_touch_each_others_slots(program: Switch) -> None:
    one = Job(workers=2, number=3, epoch=7, slot_base=0, group=2)
    other = Job(workers=2, number=4, epoch=8, slot_base=16, group=3)
    one.install(program)
    other.install(program)
    program.process(1, one.data(0, 0, [1] * 4))
    program.process(1, other.data(0, 0, [100] * 4))
    (_, frame), _ = program.process(2, one.data(1, 0, [2] * 4))
    assert read_result(frame).words == [3] * 4
    (_, frame), _ = program.process(2, other.data(1, 0, [200] * 4))
    assert read_result(frame).words == [300] * 4


def test_the_next_epoch_overwrites_the_state_of_a_crashed_job(program: Switch) -> None:
    job = Job(workers=2)
    job.install(program)
    program.process(1, job.data(0, 5, [MODULUS - 1] * 4, checksum=9))
    for rank in range(2):
        program.delete("admission", job.key(rank))
        program.delete("receiver", {"job": 3, "rank": rank})
    later = Job(workers=2, number=9, epoch=8)
    later.install(program)
    program.process(1, later.data(0, 5, [1] * 4, checksum=1))
    (_, frame), _ = program.process(2, later.data(1, 5, [1] * 4, checksum=1))
    assert read_result(frame).words == [2] * 4
    assert read_result(frame).inagg.checksum == 2


def test_a_copy_without_receiver_is_dropped_and_counted(program: Switch) -> None:
    job = Job(workers=2)
    job.install(program)
    program.delete("receiver", {"job": 3, "rank": 0})
    program.process(1, job.data(0, 0, [1] * 4))
    out = program.process(2, job.data(1, 0, [1] * 4))
    assert [port for port, _ in out] == [2]
    assert counts(program)["no_receiver"] == {1: 1}


def test_counters_count_bytes_of_the_frame_as_received(program: Switch) -> None:
    job = Job(workers=2)
    job.install(program)
    frame = job.data(0, 0, [1] * 4)
    program.process(1, frame)
    assert program.counter("started")[1] == (1, len(frame))
    assert program.direct_counter("admission", job.key(0)) == (1, len(frame))
    assert program.direct_counter("admission", job.key(1)) == (0, 0)


def test_sixty_four_workers(program: Switch) -> None:
    job = Job(workers=64)
    job.install(program)
    for rank in range(63):
        assert program.process(rank + 1, job.data(rank, 1, [1 << rank] * 4)) == []
    out = program.process(64, job.data(63, 1, [1 << 63] * 4))
    assert len(out) == 64
    assert all(read_result(frame).words == [2**64 - 1] * 4 for _, frame in out)


def test_what_another_job_has_left_in_a_slot_does_not_leave(program: Switch) -> None:
    """Not even with a packet of the other kind, which no worker sends."""
    victim = Job(workers=1)
    victim.install(program)
    victim.send_to_each(program)
    ((_, result),) = program.process(1, victim.data(0, 0, [0xDEADBEEF] * 4))
    assert read_result(result).words == [0xDEADBEEF] * 4
    thief = Job(workers=1, number=4, epoch=8)
    thief.install(program)
    thief.send_to_each(program)
    assert len(program.process(1, thief.exponent(0, 0))) == 1
    ((_, again),) = program.process(1, thief.data(0, 0, [0] * 4))
    assert read_result(again).words == [0] * 4
