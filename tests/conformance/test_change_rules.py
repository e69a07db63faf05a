# SPDX-License-Identifier: Apache-2.0
"""Every run of a change of way (protocol 6.4) with one slot, few workers and chunks.

Each packet is delivered any number of times, at any later time, or never. Ways die, restart empty, or are suspected
though they live. Each rank freezes and goes on at its own time. The rules of a way's slots are those of 5.2.

A contribution's checksum is a bit of its own, so that a sum says whose contributions to which chunk it holds.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from inagg_simulator.slot_rules.packets import Packet, Sum
from inagg_simulator.slot_rules.versions import Leaves, Version, contribute
from tests.conformance.exploration import ViolationError, explore, replaced

JOB, SLOTS = 1, 1
EMPTY = Version(epoch=0, chunk=2**31 - 1)
FIRST_CHUNK = 2**32 - 2  # of each way


class Rank(NamedTuple):
    done: int = 0  # chunks that it has completed; it awaits the next
    way: int = 0
    frozen: bool = False


class State(NamedTuple):
    ranks: tuple[Rank, ...]
    bases: tuple[int, ...]  # by way: its first chunk
    alive: tuple[bool, ...]
    versions: tuple[tuple[Version, Version], ...]
    contributions: frozenset[tuple[int, int, int]] = frozenset()  # (way, rank, chunk) that may still arrive
    results: frozenset[tuple[int, int]] = frozenset()  # (way, chunk) that may still arrive


class Exploration:
    """All runs. ways: how many the job has at most; the last one lives.

    The last three are faults that the rules exclude: ranks take results while they are frozen, or of earlier ways; no
    rank keeps results for others.
    """

    def __init__(
        self,
        workers: int,
        chunks: int,
        ways: int,
        *,
        takes_frozen: bool = False,
        takes_old: bool = False,
        keeps_none: bool = False,
    ) -> None:
        self.workers, self.chunks, self.ways = workers, chunks, ways
        self.takes_frozen, self.takes_old, self.keeps_none = takes_frozen, takes_old, keeps_none

    def start(self) -> State:
        return State((Rank(),) * self.workers, (0,), (True,), ((EMPTY, EMPTY),))

    def sum(self, chunk: int) -> int:
        """The checksum of a right sum."""
        return (1 << self.workers) - 1 << chunk * self.workers

    def contribute(self, state: State, way: int, rank: int, chunk: int) -> State:
        """A contribution arrives at a way."""
        field = (FIRST_CHUNK + chunk - state.bases[way]) % 2**32
        checksum = 1 << chunk * self.workers + rank
        packet = Packet(JOB, way + 1, field, 1 << rank, Sum(checksum=checksum))
        versions = state.versions[way]
        parity = field % 2
        held, _, leaves = contribute(
            versions[parity],
            versions[1 - parity],
            packet,
            SLOTS,
            (1 << self.workers) - 1,
            first_chunk=FIRST_CHUNK,
            root=True,
        )
        state = state._replace(
            versions=replaced(
                state.versions, way, (held, versions[1]) if parity == 0 else (versions[0], held)
            )
        )
        if leaves not in (Leaves.RESULT, Leaves.RESULT_AGAIN):
            return state
        if held.sum.checksum != self.sum(chunk):
            raise ViolationError(f"way {way} has {held.sum.checksum:b} for chunk {chunk}")
        return state._replace(results=state.results | {(way, chunk)})

    def take(self, state: State, way: int, number: int, chunk: int) -> State | None:
        """A result arrives at a rank. None if the rank discards it."""
        rank = state.ranks[number]
        if rank.frozen and not self.takes_frozen:
            return None
        if rank.way != way and not (self.takes_old and way < rank.way):
            return None
        if rank.done != chunk:
            return None
        return self.send(self.put(state, number, rank._replace(done=chunk + 1)), number)

    def send(self, state: State, number: int) -> State:
        """A rank sends its contribution to the chunk that it awaits."""
        rank = state.ranks[number]
        if rank.frozen or rank.done == self.chunks:
            return state
        return state._replace(contributions=state.contributions | {(rank.way, number, rank.done)})

    def put(self, state: State, number: int, rank: Rank) -> State:
        return state._replace(ranks=replaced(state.ranks, number, rank))

    def go_on(self, state: State, number: int) -> State:
        """A rank fills in what it lacks, and goes on. All ranks have published what they had when they froze."""
        rank = state.ranks[number]
        way, base = rank.way + 1, state.bases[rank.way + 1]
        if base - rank.done not in (0, 1):
            raise ViolationError(f"rank {number} has {rank.done} chunks, another {base}")
        done = rank.done if self.keeps_none else base
        return self.send(self.put(state, number, Rank(done, way)), number)

    def successors(self, state: State) -> Iterator[State]:
        """The states after one event."""
        for way, number, chunk in state.contributions:
            if state.alive[way]:
                yield self.contribute(state, way, number, chunk)
        for way, chunk in state.results:
            for number in range(self.workers):
                if (taken := self.take(state, way, number, chunk)) is not None:
                    yield taken
        newest = len(state.bases) - 1
        for number, rank in enumerate(state.ranks):
            yield self.send(state, number)
            if not rank.frozen and rank.way < self.ways - 1:
                yield self.put(state, number, rank._replace(frozen=True))
            if rank.frozen and rank.way < newest:
                yield self.go_on(state, number)
        if all(rank.frozen and rank.way == newest for rank in state.ranks):
            base = max(rank.done for rank in state.ranks)
            yield state._replace(
                bases=(*state.bases, base),
                alive=(*state.alive, True),
                versions=(*state.versions, (EMPTY, EMPTY)),
            )
        for way in range(min(len(state.bases), self.ways - 1)):
            yield state._replace(alive=replaced(state.alive, way, False))
            yield state._replace(versions=replaced(state.versions, way, (EMPTY, EMPTY)))
        yield state._replace(contributions=frozenset(), results=frozenset())  # all is lost

    def run(self) -> int:
        """Explore everything. Returns the number of states. Raises ViolationError, also for a dead end."""
        return explore(self.start(), lambda _: (), self.successors, self._has_ended)

    def _has_ended(self, state: State) -> bool:
        return all(rank.done == self.chunks for rank in state.ranks)


@pytest.mark.parametrize(
    ("workers", "chunks", "ways"),
    [(1, 3, 3), (2, 3, 2), (3, 2, 2), (2, 2, 3)],
    ids=lambda number: str(number),
)
def test_no_run_sums_twice_or_gets_stuck(workers: int, chunks: int, ways: int) -> None:
    assert Exploration(workers, chunks, ways).run() > 1000


@pytest.mark.parametrize("fault", ["takes_frozen", "takes_old", "keeps_none"])
def test_without_any_of_its_rules_a_run_fails(fault: str) -> None:
    with pytest.raises(ViolationError):
        Exploration(2, 3, 2, **{fault: True}).run()
