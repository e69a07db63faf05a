# SPDX-License-Identifier: Apache-2.0
"""Every run of the slot rules (protocol 5.2 and 6) in a tree of switches, with few workers and chunks: any packet that
was ever sent is delivered any number of times, in any order, at any later time. Whatever has happened, the queries of
workers bring the job to its end.

A contribution's checksum is a bit of its own, so that a sum says whose contributions it holds. Packets need no place in
a state beyond the chunks that have left each switch: what they say follows from the chunk.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import pytest

from inagg_simulator.fabric import Parent, Tree, places
from inagg_simulator.slot_rules import versions as rules
from inagg_simulator.slot_rules.packets import Packet, Query, Sum, age
from inagg_simulator.slot_rules.versions import Leaves, Outcome, Version, ask, contribute, hear, keep
from tests.conformance.exploration import ViolationError, explore, replaced

JOB, EPOCH = 1, 2


class State(NamedTuple):
    have: tuple[tuple[int, ...], ...]  # by worker and slot: chunks whose result the worker has
    versions: tuple[tuple[Version, ...], ...]  # by switch
    partials: tuple[frozenset[int], ...]  # by switch: chunks whose partial sum has left for the switch above
    results: tuple[frozenset[int], ...]  # by switch: chunks whose result has left for the members


class Exploration:
    """All runs of a job on one tree. The last switch is the root."""

    def __init__(self, tree: Tree, *, slots: int, chunks: int, first_chunk: int = 0) -> None:
        self.slots, self.chunks, self.first_chunk = slots, chunks, first_chunk
        self.switches = places(tree)
        self.root = self.switches[-1].number
        self.below: list[set[int]] = []  # by switch, the workers
        self.worker_at: dict[int, Parent] = {}
        for place in self.switches:
            self.below.append(set())
            for number, member in enumerate(place.members):
                if isinstance(member, int):
                    self.worker_at[member] = Parent(place.number, number)
                    self.below[-1].add(member)
                else:
                    self.below[-1] |= self.below[member.number]

    @cached_property
    def workers(self) -> int:
        return len(self.worker_at)

    def everybody(self, switch: int) -> int:
        """The bits of all members."""
        return (1 << len(self.switches[switch].members)) - 1

    def contribution(self, worker: int, chunk: int) -> int:
        return 1 << (chunk * self.workers + worker)

    def partial(self, switch: int, chunk: int) -> int:
        return sum(self.contribution(worker, chunk) for worker in self.below[switch])

    def packet(self, chunk: int, checksum: int, bit: int = 0) -> Packet:
        return Packet(JOB, EPOCH, (self.first_chunk + chunk) % 2**32, bit, Sum(checksum=checksum))

    def query(self, chunk: int, bit: int = 0) -> Query:
        return Query(*self.packet(chunk, 0, bit)[:4])

    def start(self) -> State:
        versions = [Version(epoch=1, chunk=2**31 - 1)] * (2 * self.slots)
        none: tuple[frozenset[int], ...] = (frozenset(),) * len(self.switches)
        return State(((0,) * self.slots,) * self.workers, (tuple(versions),) * len(self.switches), none, none)

    def contribute(self, state: State, member: Parent, chunk: int, checksum: int) -> State:
        """A contribution, of a worker or a switch below, arrives."""
        switch = member.switch
        packet = self.packet(chunk, checksum, 1 << member.member)
        index = packet.chunk % (2 * self.slots)
        before = (packet.chunk - self.slots) % (2 * self.slots)
        versions = state.versions[switch]
        everybody = self.everybody(switch)
        held, counters, leaves = contribute(
            versions[index],
            versions[before],
            packet,
            self.slots,
            everybody,
            first_chunk=self.first_chunk,
            root=switch == self.root,
        )
        if "started" in counters:
            self.check_overwritten(state, switch, versions[index])
        state = self.hold(state, switch, index, held)
        if leaves is Leaves.PARTIAL:
            return self.send(state, switch, chunk, held, up=True)
        if leaves in (Leaves.RESULT, Leaves.RESULT_AGAIN):
            return self.send(state, switch, chunk, held, up=False)
        return state

    def version(self, state: State, switch: int, chunk: int) -> Version:
        return state.versions[switch][self.packet(chunk, 0).chunk % (2 * self.slots)]

    def ask(self, state: State, member: Parent, chunk: int) -> Leaves:
        """What a switch answers to a member's query, or the one above in its place."""
        held, everybody = self.version(state, member.switch, chunk), self.everybody(member.switch)
        answer = ask(held, self.query(chunk, 1 << member.member), everybody).leaves
        if answer is not Leaves.QUERY:
            return answer
        (parent,) = self.switches[member.switch].parents
        answer = self.ask(state, parent, chunk)
        assert hear(held, self.query(chunk), everybody).leaves is Leaves.ANSWER
        return answer

    def send_again(self, state: State, member: Parent, chunk: int, checksum: int) -> tuple[State, bool]:
        """A member sends its contribution again. Returns what follows, and whether its switch has the result then."""
        state = self.contribute(state, member, chunk, checksum)
        held = self.version(state, member.switch, chunk)
        if not held.final and chunk in state.partials[member.switch]:
            (parent,) = self.switches[member.switch].parents
            state, final = self.send_again(state, parent, chunk, held.sum.checksum)
            state = self.pass_down(state, member.switch, chunk) if final else state
        return state, self.version(state, member.switch, chunk).final

    def repairs(self, state: State) -> Iterator[State]:
        """The states after one query for a result that is awaited, its answer, and what follows without losses."""
        for worker, member in self.worker_at.items():
            for slot, done in enumerate(state.have[worker]):
                chunk = done * self.slots + slot
                if chunk >= self.chunks:
                    continue
                answer = self.ask(state, member, chunk)
                if answer not in (Leaves.SAY_AGAIN, Leaves.SAY_HELD):
                    raise ViolationError(f"worker {worker} waits for chunk {chunk}, which has no answer")
                if answer is Leaves.SAY_AGAIN:
                    own = self.contribution(worker, chunk)
                    following, final = self.send_again(state, member, chunk, own)
                    yield self.take(following, worker, chunk) if final else following

    def take(self, state: State, worker: int, chunk: int) -> State:
        """A worker takes a result."""
        have, slot = state.have[worker], chunk % self.slots
        return state._replace(have=replaced(state.have, worker, replaced(have, slot, have[slot] + 1)))

    def pass_down(self, state: State, switch: int, chunk: int) -> State:
        """A result arrives from the switch above."""
        packet = self.packet(chunk, self.partial(self.root, chunk))
        index = packet.chunk % (2 * self.slots)
        held, _, leaves = keep(state.versions[switch][index], packet, self.everybody(switch))
        state = self.hold(state, switch, index, held)
        return self.send(state, switch, chunk, held, up=False) if leaves is Leaves.RESULT else state

    def hold(self, state: State, switch: int, index: int, held: Version) -> State:
        versions = list(state.versions[switch])
        versions[index] = held
        return state._replace(versions=replaced(state.versions, switch, tuple(versions)))

    def send(self, state: State, switch: int, chunk: int, held: Version, *, up: bool) -> State:
        if held.sum.checksum != self.partial(switch if up else self.root, chunk):
            raise ViolationError(f"switch {switch} sends {held.sum.checksum:b} for chunk {chunk}")
        if up:
            return state._replace(partials=replaced(state.partials, switch, state.partials[switch] | {chunk}))
        return state._replace(results=replaced(state.results, switch, state.results[switch] | {chunk}))

    def check_overwritten(self, state: State, switch: int, old: Version) -> None:
        chunk = age(old.chunk, self.first_chunk)
        if old.epoch == EPOCH and chunk >= 0:
            have = (state.have[worker][chunk % self.slots] for worker in self.below[switch])
            if any(done <= chunk // self.slots for done in have):
                raise ViolationError(f"switch {switch} overwrites {chunk}, whose result is still needed")

    def successors(self, state: State) -> Iterator[State]:
        """The states after one packet."""
        for worker, member in self.worker_at.items():
            have = state.have[worker]
            for chunk in range(self.chunks):
                if chunk // self.slots <= have[chunk % self.slots]:
                    yield self.contribute(state, member, chunk, self.contribution(worker, chunk))
            for chunk in state.results[member.switch]:
                slot = chunk % self.slots
                if have[slot] == chunk // self.slots:
                    yield self.take(state, worker, chunk)
        for place in self.switches[:-1]:
            (parent,) = place.parents
            for chunk in state.partials[place.number]:
                yield self.contribute(state, parent, chunk, self.partial(place.number, chunk))
            for chunk in state.results[parent.switch]:
                yield self.pass_down(state, place.number, chunk)

    def run(self) -> int:
        """Explore everything. Returns the number of states. Raises ViolationError, also for a dead end."""
        return explore(self.start(), self.successors, self.repairs, self._has_ended)

    def _has_ended(self, state: State) -> bool:
        return all(sum(have) == self.chunks for have in state.have)


TREES: dict[str, Tree] = {
    "two leaves": ((0, 1), (2, 3)),
    "uneven": ((0, 1, 2), 3),
    "three leaves": ((0, 1), (2,), (3, 4)),
    "a chain of three": (((0, 1),),),
    "a chain with workers at each": (0, (1, (2, 3))),
    "three levels": (((0, 1), (2,)), (3,)),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_no_run_gives_a_wrong_sum_or_loses_a_result(tree: Tree) -> None:
    assert Exploration(tree, slots=1, chunks=4).run() > 40


@pytest.mark.long
@pytest.mark.parametrize("tree", [TREES["two leaves"], TREES["a chain with workers at each"]], ids=str)
def test_nor_with_two_slots(tree: Tree) -> None:
    assert Exploration(tree, slots=2, chunks=4).run() > 1000


def test_nor_where_chunk_numbers_wrap() -> None:
    assert Exploration(((0, 1), (2,)), slots=1, chunks=5, first_chunk=2**32 - 2).run() > 40


def test_the_exploration_finds_a_leaf_that_answers_with_its_partial_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hasty(*arguments: Any, **job: Any) -> Outcome:
        held, counters, leaves = rules.contribute(*arguments, **job)
        return Outcome(held._replace(final=held.final or "partial_sent" in counters), counters, leaves)

    monkeypatch.setattr("tests.conformance.test_tree_rules.contribute", hasty)
    with pytest.raises(ViolationError, match=r"switch \d sends"):
        Exploration(TREES["two leaves"], slots=1, chunks=2).run()


def test_the_exploration_finds_a_leaf_that_never_takes_a_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forgetful(held: Version, packet: Packet, everybody: int) -> Outcome:
        return Outcome(held, ("result_unexpected",), Leaves.NOTHING)

    monkeypatch.setattr("tests.conformance.test_tree_rules.keep", forgetful)
    with pytest.raises(ViolationError, match="never lead"):
        Exploration(TREES["two leaves"], slots=1, chunks=2).run()


def test_the_exploration_finds_a_leaf_that_answers_queries_for_the_switch_above(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def deaf(*arguments: Any) -> Outcome:
        outcome = rules.ask(*arguments)
        held = outcome.leaves is Leaves.QUERY
        return outcome._replace(leaves=Leaves.SAY_HELD) if held else outcome

    monkeypatch.setattr("tests.conformance.test_tree_rules.ask", deaf)
    with pytest.raises(ViolationError, match="never lead"):
        Exploration(TREES["two leaves"], slots=1, chunks=2).run()
