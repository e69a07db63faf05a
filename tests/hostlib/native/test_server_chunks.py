# SPDX-License-Identifier: Apache-2.0
"""Where a server's chunks were summed: in switches, in both, or in servers alone."""

from collections import Counter
from collections.abc import Sequence

import pytest

from inagg._core import ServedJob
from inagg_simulator import reference
from inagg_simulator.virtual_network import EPOCH, JOB, make_shape

WORDS = 1


def contribution(chunk: int, rank: int, kind: int = reference.DATA, members: bytes = b"") -> bytes:
    """members: what a switch puts behind the header."""
    header = reference.contribution(kind=kind, rank=rank, job=JOB, epoch=EPOCH, chunk=chunk)
    words = b"\x00\x00\x00\x01" * 64 * WORDS if kind == reference.DATA else b""
    return header.encode() + members + words


def relayed(chunk: int, ranks: Sequence[int], kind: int = reference.DATA) -> bytes:
    """What a switch makes of the contributions of some ranks."""
    members = sum(1 << rank for rank in ranks)
    return contribution(chunk, ranks[0], kind, members.to_bytes(8, "big"))


def new_job(workers: int, *, relayed: bool = True, slots: int = 4, home: int | None = None) -> ServedJob:
    return ServedJob(make_shape(workers, slots=slots, words=WORDS), relayed=relayed, home=home)


@pytest.mark.parametrize(
    ("packets", "where"),
    [
        ([(0, 1, 2)], "switches"),
        ([(0, 1), (2,)], "both"),
        ([(0,), (1, 2)], "both"),
        ([(0,), (2,), (1,)], "servers"),
        ([(0,), (0, 1), (1, 2)], "both"),  # the second has what is in, and is dropped
        ([(0,), (0, 1, 2), (1,), (2,)], "servers"),  # none of the second's is added
    ],
)
def test_a_chunk_counts_where_it_was_summed(packets: list[tuple[int, ...]], where: str) -> None:
    job = new_job(3)
    for ranks in packets:
        assert not any(job.chunks.values())
        job.receive(relayed(0, ranks), None)
    expected = {"switches": 0, "both": 0, "servers": 0} | {where: 1}
    assert job.chunks == expected
    for ranks in [*packets, (0, 1, 2)]:  # all have the result already
        job.receive(relayed(0, ranks), None)
    assert job.chunks == expected


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize(
    ("packets", "where"),
    [([(1, 2, 3)], "switches"), ([(1, 2), (3,)], "both"), ([(1,), (2,), (3,)], "servers")],
)
def test_the_rank_at_home_does_not_count(packets: list[tuple[int, ...]], where: str, first: bool) -> None:
    """Its contribution never passes the switch."""
    job = new_job(4, home=0)
    own = (contribution(0, 0), 0)
    others = [(relayed(0, ranks), None) for ranks in packets]
    sent = []
    for datagram, worker in [own, *others] if first else [*others, own]:
        sent += job.receive(datagram, worker)
    assert [(to, reference.decode(left).rank) for to, left in sent] == [(None, 0)]
    assert job.chunks == {"switches": 0, "both": 0, "servers": 0} | {where: 1}


def test_with_one_rank_besides_that_at_home_the_switch_adds_nothing() -> None:
    job = new_job(2, home=1)
    job.receive(contribution(0, 1), 1)
    job.receive(relayed(0, (0,)), None)
    assert job.chunks == {"switches": 0, "both": 0, "servers": 1}


def test_only_the_rank_at_home_comes_past_the_switch() -> None:
    job = new_job(3, home=1)
    job.receive(contribution(0, 0), 0)
    job.receive(contribution(0, 1), 2)
    assert +Counter(job.counts) == {"not_admitted": 2}
    job.receive(contribution(0, 1), 1)
    assert job.counts["started"] == 1


def test_home_is_a_worker_of_a_relayed_job() -> None:
    with pytest.raises(ValueError, match="home is a worker of a relayed job"):
        new_job(2, home=2)
    with pytest.raises(ValueError, match="home is a worker of a relayed job"):
        new_job(2, relayed=False, home=0)


def test_a_version_that_starts_again_does_not_remember_how_it_was_summed() -> None:
    job = new_job(2, slots=1)
    together: list[tuple[int, ...]] = [(0, 1)]
    apart: list[tuple[int, ...]] = [(0,), (1,)]
    for chunk, packets in enumerate([together, apart, apart, together, together]):
        for ranks in packets:
            job.receive(relayed(chunk, ranks), None)
    assert job.chunks == {"switches": 3, "both": 0, "servers": 2}


def test_exponents_do_not_count_as_chunks() -> None:
    """Switches do not sum them."""
    job = new_job(2)
    job.receive(relayed(0, (0,), reference.EXPONENT), None)
    job.receive(relayed(0, (1,), reference.EXPONENT), None)
    assert job.counts["completed"] == 1
    assert not any(job.chunks.values())


@pytest.mark.parametrize("workers", [1, 3])
def test_without_a_switch_servers_sum_all_chunks(workers: int) -> None:
    job = new_job(workers, relayed=False)
    for chunk in range(4):
        for rank in range(workers):
            job.receive(contribution(chunk, rank), rank)
    assert job.chunks == {"switches": 0, "both": 0, "servers": 4}


def test_nothing_is_to_be_summed_in_a_switch_for_one_worker() -> None:
    job = new_job(1)
    job.receive(relayed(0, (0,)), None)
    assert job.chunks == {"switches": 0, "both": 0, "servers": 1}
