# SPDX-License-Identifier: Apache-2.0
"""Congestion marks of p4/inagg.p4 (docs/protocol.md, 6.2), run in process with queues of given lengths."""

import pytest

from inagg_switch import Switch
from tests.switch.inagg.packets import RESULT, Job, ethernet, inet_checksum, ipv4, read_inagg, udp, with_tos

CONGESTED = 0x10
NOT_CAPABLE, CAPABLE, MARKED = 0b00, 0b10, 0b11
TOS = 15  # offset in the frame
QUEUE = "mark_congestion.queue"


@pytest.fixture
def job(program: Switch) -> Job:
    made = Job(workers=2)
    made.install(program)
    made.send_to_each(program)
    return made


def limit(program: Switch, port: int, packets: int) -> None:
    program.insert(QUEUE, {"port": port}, "mark_beyond", {"packets": packets})


def complete(
    program: Switch, job: Job, tos: tuple[int, int], queues: dict[int, int] | None = None
) -> dict[int, bytes]:
    """The result of a chunk to which both ranks contribute, by port."""
    assert program.process(job.port(0), with_tos(job.data(0, 0, [1] * 4), tos[0])) == []
    return dict(program.process(job.port(1), with_tos(job.data(1, 0, [2] * 4), tos[1]), queues=queues))


def flags(frame: bytes) -> tuple[int, int | None]:
    header = read_inagg(frame[42:62])
    assert header.kind & RESULT
    assert inet_checksum(frame[14:34]) == 0
    return header.flags, header.flags_check


def test_what_meets_more_packets_than_the_limit_is_marked(program: Switch, job: Job) -> None:
    for port in (job.port(0), job.port(1)):
        limit(program, port, 32)
    left = complete(program, job, (CAPABLE, CAPABLE), {job.port(0): 33, job.port(1): 32})
    assert left[job.port(0)][TOS] == MARKED
    assert left[job.port(1)][TOS] == CAPABLE
    assert left[job.port(0)][42:] == left[job.port(1)][42:]  # all copies have the same payload
    assert flags(left[job.port(0)]) == flags(left[job.port(1)]) == (0, 0)
    counts = program.counter("congestion_marked")
    assert (counts[job.port(0)][0], counts[job.port(1)][0]) == (1, 0)


def test_no_packet_of_a_sender_that_does_not_take_part_is_marked(program: Switch, job: Job) -> None:
    limit(program, job.port(0), 1)
    assert complete(program, job, (NOT_CAPABLE, NOT_CAPABLE), {job.port(0): 99})[job.port(0)][TOS] == 0
    assert program.counter("congestion_marked")[job.port(0)][0] == 0


def test_without_a_limit_nothing_is_marked(program: Switch, job: Job) -> None:
    left = complete(program, job, (CAPABLE, CAPABLE), {job.port(0): 500_000})
    assert left[job.port(0)][TOS] == CAPABLE


@pytest.mark.parametrize("tos", [(MARKED, CAPABLE), (CAPABLE, MARKED), (MARKED, MARKED)])
def test_the_mark_of_a_contribution_becomes_a_flag_of_the_sum(
    program: Switch, job: Job, tos: tuple[int, int]
) -> None:
    for frame in complete(program, job, tos).values():
        assert flags(frame) == (CONGESTED, CONGESTED)
        assert frame[TOS] == CAPABLE  # the result has met nothing yet


def test_a_result_that_is_sent_again_has_the_flag_too(program: Switch, job: Job) -> None:
    complete(program, job, (MARKED, CAPABLE))
    ((_, again),) = program.process(job.port(0), with_tos(job.data(0, 0, [1] * 4), CAPABLE))
    assert flags(again) == (CONGESTED, CONGESTED)


def test_the_mark_of_a_query_changes_no_answer(program: Switch, job: Job) -> None:
    query = job.query(0, 0, 5)
    expected = program.process(job.port(0), with_tos(query, CAPABLE))
    assert expected
    assert program.process(job.port(0), with_tos(query, MARKED)) == expected


def ordinary(tos: int, options: bool = False) -> bytes:
    """A frame to a server, from the host at port 1 to that at port 2."""
    packet = ipv4(0x0A000001, 0x0A000002, udp(40000, 50000, b"partial"))
    if options:
        packet = bytes([0x46]) + packet[1:20] + bytes([1, 1, 1, 0]) + packet[20:]
    return with_tos(ethernet(0x020000000002, 0x020000000001, 0x0800, packet), tos)


@pytest.mark.parametrize(
    ("tos", "length", "left"), [(CAPABLE, 33, MARKED), (CAPABLE, 32, CAPABLE), (0, 33, 0)]
)
def test_ordinary_traffic_is_marked_too(program: Switch, tos: int, length: int, left: int) -> None:
    """Packets to and from servers are that."""
    program.insert("l2.station", {"mac": 0x020000000002}, "to_port", {"port": 2})
    limit(program, 2, 32)
    sent = ordinary(tos)
    ((port, frame),) = program.process(1, sent, queues={2: length})
    assert (port, frame) == (2, with_tos(sent, left))
    assert inet_checksum(frame[14:34]) == 0


def test_what_has_options_is_not_marked(program: Switch) -> None:
    program.insert("l2.station", {"mac": 0x020000000002}, "to_port", {"port": 2})
    limit(program, 2, 32)
    sent = ordinary(CAPABLE, options=True)
    assert program.process(1, sent, queues={2: 99}) == [(2, sent)]


def test_a_copy_that_does_not_leave_is_not_counted(program: Switch, job: Job) -> None:
    for port in (job.port(0), job.port(1)):
        limit(program, port, 1)
    program.delete("receiver", {"job": job.number, "rank": 0})
    left = complete(program, job, (CAPABLE, CAPABLE), {job.port(0): 9, job.port(1): 9})
    assert list(left) == [job.port(1)]
    counts = program.counter("congestion_marked")
    assert (counts[job.port(0)][0], counts[job.port(1)][0]) == (0, 1)
