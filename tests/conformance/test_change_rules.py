# SPDX-License-Identifier: Apache-2.0
"""Every run of a change of way (protocol 6.4) with one slot, few workers and chunks.

Each packet is delivered any number of times, at any later time, or never. Ways die, restart empty, in part too, or are
suspected though they live. Each rank freezes and goes on at its own time. The rules of a way's slots are those of 5.2
and 5.7, also on a tree and on shared slots (`explored_ways`).

A contribution's checksum is a bit of its own, so that a sum says whose contributions to which chunk it holds.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from inagg_simulator.slot_rules.packets import Packet, Sum
from tests.conformance.exploration import ViolationError, explore, replaced
from tests.conformance.explored_ways import FIRST_CHUNK, OneSwitch, SharedSlot, Step, TwoLeaves, Way

JOB = 1


class Rank(NamedTuple):
    done: int = 0  # chunks that it has completed; it awaits the next
    way: int = 0
    frozen: bool = False


class State(NamedTuple):
    ranks: tuple[Rank, ...]
    bases: tuple[int, ...]  # by way: its first chunk
    alive: tuple[bool, ...]
    parts: tuple[Any, ...]  # by way
    contributions: frozenset[tuple[int, int, int]] = frozenset()  # (way, rank, chunk) that may still arrive
    results: frozenset[tuple[int, int, int]] = frozenset()  # the same


class Exploration:
    """All runs. ways: those that the job has, one after another, at most; the last one lives.

    The last three are faults that the rules exclude: ranks take results while they are frozen, or of earlier ways; no
    rank keeps results for others.
    """

    def __init__(
        self,
        workers: int,
        chunks: int,
        ways: Sequence[Way],
        *,
        takes_frozen: bool = False,
        takes_old: bool = False,
        keeps_none: bool = False,
    ) -> None:
        self.workers, self.chunks, self.ways = workers, chunks, ways
        self.takes_frozen, self.takes_old, self.keeps_none = takes_frozen, takes_old, keeps_none

    def start(self) -> State:
        return State((Rank(),) * self.workers, (0,), (True,), (self.ways[0].new(),))

    def sum(self, chunk: int) -> int:
        """The checksum of a right sum."""
        return (1 << self.workers) - 1 << chunk * self.workers

    def packet(self, state: State, way: int, rank: int, chunk: int) -> Packet:
        """A contribution."""
        checksum = 1 << chunk * self.workers + rank
        field = (FIRST_CHUNK + chunk - state.bases[way]) % 2**32
        return Packet(JOB, way + 1, field, 1 << rank, Sum(checksum=checksum))

    def after(self, state: State, way: int, step: Step) -> State:
        """The state after something has happened at a way."""
        results = state.results
        for field, ranks, checksum in step.sent:
            chunk = (field - FIRST_CHUNK) % 2**32 + state.bases[way]
            if checksum != self.sum(chunk):
                raise ViolationError(f"way {way} has {checksum:b} for chunk {chunk}")
            results |= {(way, rank, chunk) for rank in ranks}
        return state._replace(parts=replaced(state.parts, way, step.parts), results=results)

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
        for way, kind in enumerate(self.ways[: len(state.bases)]):
            if state.alive[way]:
                for step in self.steps(state, way):
                    yield self.after(state, way, step)
            if way < len(self.ways) - 1:
                yield state._replace(alive=replaced(state.alive, way, False))
                for parts in kind.restarts(state.parts[way]):
                    yield state._replace(parts=replaced(state.parts, way, parts))
        for way, number, chunk in state.results:
            if (taken := self.take(state, way, number, chunk)) is not None:
                yield taken
        yield from self.after_a_rank(state)
        parts = zip(self.ways, state.parts, strict=False)
        lost = tuple(way.without_packets(each) for way, each in parts)
        yield state._replace(parts=lost, contributions=frozenset(), results=frozenset())  # all is lost

    def steps(self, state: State, way: int) -> Iterator[Step]:
        """What may happen at a way."""
        for to, rank, chunk in state.contributions:
            if to == way:
                yield from self.ways[way].arrive(state.parts[way], self.packet(state, way, rank, chunk))
        yield from self.ways[way].within(state.parts[way])

    def after_a_rank(self, state: State) -> Iterator[State]:
        """The states after a rank sends, freezes or goes on, or all have published."""
        newest = len(state.bases) - 1
        for number, rank in enumerate(state.ranks):
            yield self.send(state, number)
            if not rank.frozen and rank.way < len(self.ways) - 1:
                yield self.put(state, number, rank._replace(frozen=True))
            if rank.frozen and rank.way < newest:
                yield self.go_on(state, number)
        if all(rank.frozen and rank.way == newest for rank in state.ranks):
            base = max(rank.done for rank in state.ranks)
            yield state._replace(
                bases=(*state.bases, base),
                alive=(*state.alive, True),
                parts=(*state.parts, self.ways[newest + 1].new()),
            )

    def may_take(self, rank: Rank, way: int) -> bool:
        """Whether a rank may ever take a result of a way."""
        if rank.way == way and not rank.frozen:
            return True
        return rank.way < way or self.takes_old or (rank.way == way and self.takes_frozen)

    def without_void(self, state: State) -> State:
        """The state without what makes no difference any more: ways of which nobody takes a result, and results that
        nobody takes."""
        alive = tuple(
            lives and any(self.may_take(rank, way) for rank in state.ranks)
            for way, lives in enumerate(state.alive)
        )
        return state._replace(
            alive=alive,
            parts=tuple(
                each if lives else way.new()
                for way, each, lives in zip(self.ways, state.parts, alive, strict=False)
            ),
            contributions=frozenset(each for each in state.contributions if alive[each[0]]),
            results=frozenset(
                (way, number, chunk)
                for way, number, chunk in state.results
                if state.ranks[number].done <= chunk and self.may_take(state.ranks[number], way)
            ),
        )

    def run(self) -> int:
        """Explore everything. Returns the number of states. Raises ViolationError, also for a dead end."""
        return explore(
            self.start(),
            lambda _: (),
            lambda state: map(self.without_void, self.successors(state)),
            self._has_ended,
        )

    def _has_ended(self, state: State) -> bool:
        return all(rank.done == self.chunks for rank in state.ranks)


def switches(workers: int, ways: int) -> list[Way]:
    """So many single switches."""
    return [OneSwitch(workers)] * ways


TREE, SLOT, SWITCH = TwoLeaves((0,), (1,)), SharedSlot(2), OneSwitch(2)


@pytest.mark.parametrize(
    ("workers", "chunks", "ways"),
    [(1, 3, 3), (2, 3, 2), (3, 2, 2), (2, 2, 3)],
    ids=lambda number: str(number),
)
def test_no_run_sums_twice_or_gets_stuck(workers: int, chunks: int, ways: int) -> None:
    assert Exploration(workers, chunks, switches(workers, ways)).run() > 100


CHANGES: dict[str, Sequence[Way]] = {
    "from a tree": (TREE, SWITCH),
    "to a tree": (SWITCH, TREE),
    "from a tree to shared slots": (TREE, SLOT),
    "from shared slots": (SLOT, SWITCH),
    "to shared slots": (SWITCH, SLOT),
    "from shared slots to a tree and on": (SLOT, TREE, SWITCH),
}


@pytest.mark.parametrize("ways", CHANGES.values(), ids=CHANGES)
def test_nor_with_trees_and_shared_slots(ways: Sequence[Way]) -> None:
    assert Exploration(2, 1, ways).run() > 100


@pytest.mark.long
@pytest.mark.parametrize("name", ["to a tree", "from shared slots", "to shared slots"])
def test_nor_with_two_chunks(name: str) -> None:
    assert Exploration(2, 2, CHANGES[name]).run() > 800


@pytest.mark.parametrize("fault", ["takes_frozen", "takes_old", "keeps_none"])
@pytest.mark.parametrize("first", [SWITCH, TREE, SLOT], ids=["star", "tree", "shared"])
def test_without_any_of_its_rules_a_run_fails(fault: str, first: Way) -> None:
    with pytest.raises(ViolationError):
        Exploration(2, 3 if first is SWITCH else 1, (first, SWITCH), **{fault: True}).run()
