# SPDX-License-Identifier: Apache-2.0
"""Every run of the slot rules (protocol 5.2 and 6) with few workers and chunks: any packet that was ever sent is
delivered any number of times, in any order, at any later time. One contribution may say
another chunk or rank than its own. Whatever has happened, the queries of workers bring the job to its end.

A state holds what each worker waits for, the slot versions, and which results have left the switch. Packets need no
place in it: the network may deliver all that was ever sent, and that follows from the rest. A contribution's checksum
is a bit of its own, so that a sum says whose contributions it holds.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from inagg_simulator.slot_rules import versions as rules
from inagg_simulator.slot_rules.packets import Packet, Query, Sum, age
from inagg_simulator.slot_rules.versions import Leaves, Outcome, Version, ask, contribute

JOB, EPOCH = 1, 2


class Setting(NamedTuple):
    workers: int
    slots: int
    chunks: int
    first_chunk: int = 0
    damaged: int = 0  # contributions that say another chunk or rank
    versions: int = 2  # of a slot; fewer must fail
    looks_back: bool = (
        True  # whether the chunk before in the slot must be complete; else any older chunk gives way
    )


class State(NamedTuple):
    # By worker and slot: chunks whose result the worker has.
    have: tuple[tuple[int, ...], ...]
    versions: tuple[Version, ...]
    results: frozenset[int]  # chunks whose result has left the switch
    wrong: frozenset[int]  # the same, with a wrong sum
    to_damage: int  # contributions that may still be damaged
    failed: bool = False  # a worker has found a wrong sum


class ViolationError(Exception):
    pass


class Label(NamedTuple):
    """Chunk and rank of a contribution: the real ones, or those in its header."""

    worker: int
    chunk: int


def contribution(setting: Setting, sent: Label, said: Label) -> Packet:
    number = (setting.first_chunk + said.chunk) % 2**32
    checksum = 1 << (sent.chunk * setting.workers + sent.worker)
    return Packet(JOB, EPOCH, number, 1 << said.worker, Sum(checksum=checksum))


def right_sum(setting: Setting, chunk: int) -> int:
    return sum(1 << (chunk * setting.workers + worker) for worker in range(setting.workers))


def sent(setting: Setting, state: State) -> Iterator[Label]:
    """All contributions sent so far: in each slot, one chunk more than have come back."""
    for worker, have in enumerate(state.have):
        for chunk in range(setting.chunks):
            if chunk // setting.slots <= have[chunk % setting.slots]:
                yield Label(worker, chunk)


def deliver_contribution(setting: Setting, state: State, own: Label, said: Label) -> State:
    everybody = 2**setting.workers - 1
    packet = contribution(setting, own, said)
    index = packet.chunk % (setting.versions * setting.slots)
    before = (packet.chunk - setting.slots) % 2**32
    other = state.versions[before % (setting.versions * setting.slots)]
    if not setting.looks_back:
        other = Version(EPOCH, before, everybody, final=True)
    held, counters, leaves = contribute(
        state.versions[index], other, packet, setting.slots, everybody, first_chunk=setting.first_chunk
    )
    if "started" in counters and state.versions[index].epoch == EPOCH:
        overwritten = age(state.versions[index].chunk, setting.first_chunk)
        slot = overwritten % setting.slots
        needed = any(have[slot] <= overwritten // setting.slots for have in state.have)
        if overwritten < setting.chunks and needed:
            raise ViolationError(f"chunk {said.chunk} overwrites {overwritten}, whose result is still needed")
    results, wrong = state.results, state.wrong
    if leaves in (Leaves.RESULT, Leaves.RESULT_AGAIN) and 0 <= said.chunk < setting.chunks:
        if held.sum.checksum == right_sum(setting, said.chunk):
            results |= {said.chunk}
        elif setting.damaged:
            wrong |= {said.chunk}
        else:
            raise ViolationError(f"the result of chunk {said.chunk} sums {held.sum.checksum:b}")
    versions = (*state.versions[:index], held, *state.versions[index + 1 :])
    to_damage = state.to_damage - (own != said)
    return state._replace(versions=versions, results=results, wrong=wrong, to_damage=to_damage)


def deliver_result(setting: Setting, state: State, worker: int, chunk: int) -> State:
    have = list(state.have[worker])
    if have[chunk % setting.slots] != chunk // setting.slots:
        return state  # a duplicate
    if chunk in state.wrong:
        return state._replace(failed=True)
    have[chunk % setting.slots] += 1
    return state._replace(have=(*state.have[:worker], tuple(have), *state.have[worker + 1 :]))


def successors(setting: Setting, state: State) -> Iterator[State]:
    """The states after one undamaged packet."""
    labels = set(sent(setting, state))
    for own in labels:
        yield deliver_contribution(setting, state, own, own)
    for chunk in state.results | state.wrong:
        for worker in range(setting.workers):
            if (worker, chunk) in labels:
                yield deliver_result(setting, state, worker, chunk)


def repairs(setting: Setting, state: State) -> Iterator[State]:
    """The states after one query for a result that is awaited, its answer, and what the worker does then."""
    for worker, chunk in sent(setting, state):
        if state.have[worker][chunk % setting.slots] == chunk // setting.slots:
            own = Label(worker, chunk)
            packet = contribution(setting, own, own)
            held = state.versions[packet.chunk % (setting.versions * setting.slots)]
            answer = ask(held, Query(*packet[:4]), 2**setting.workers - 1).leaves
            if answer is Leaves.SAY_AGAIN:
                following = deliver_contribution(setting, state, own, own)
                final = held.final and (held.epoch, held.chunk) == (EPOCH, packet.chunk)
                yield deliver_result(setting, following, worker, chunk) if final else following
            elif answer is not Leaves.SAY_HELD:
                raise ViolationError(f"worker {worker} waits for chunk {chunk}, which has no answer")


def damaged(setting: Setting, state: State) -> Iterator[State]:
    """The states after one contribution with a wrong rank or chunk, including chunks outside the job."""
    if state.to_damage == 0:
        return
    round_of_versions = 2 * setting.slots
    for own in sent(setting, state):
        for chunk in range(-round_of_versions, setting.chunks + round_of_versions):
            if chunk != own.chunk:
                yield deliver_contribution(setting, state, own, own._replace(chunk=chunk))
        for worker in range(setting.workers):
            if worker != own.worker:
                yield deliver_contribution(setting, state, own, own._replace(worker=worker))


def explore(setting: Setting, start_versions: tuple[Version, ...]) -> dict[State, set[State]]:
    """Every reachable state, with the states that lead to it by one query. Raises ViolationError."""
    start = State(
        ((0,) * setting.slots,) * setting.workers, start_versions, frozenset(), frozenset(), setting.damaged
    )
    predecessors: dict[State, set[State]] = {start: set()}
    unexplored = [start]

    def reached(state: State) -> set[State]:
        if state not in predecessors:
            predecessors[state] = set()
            unexplored.append(state)
        return predecessors[state]

    while unexplored:
        state = unexplored.pop()
        if state.failed:
            continue
        for following in (*successors(setting, state), *damaged(setting, state)):
            reached(following)
        for following in repairs(setting, state):
            reached(following).add(state)
    return predecessors


def finished(setting: Setting, state: State) -> bool:
    return all(sum(have) == setting.chunks for have in state.have)


def check_progress(setting: Setting, reachable: dict[State, set[State]]) -> None:
    """No state is a dead end: queries lead to the last result, or to a worker that fails. Else ViolationError."""
    ends = [state for state in reachable if state.failed or finished(setting, state)]
    assert any(not state.failed for state in ends)
    assert setting.damaged or not any(state.failed for state in ends)
    leads_to_an_end = set(ends)
    unexplored = list(ends)
    while unexplored:
        for state in reachable[unexplored.pop()] - leads_to_an_end:
            leads_to_an_end.add(state)
            unexplored.append(state)
    if leads_to_an_end != set(reachable):
        raise ViolationError("some states never lead to an end")


def fresh(setting: Setting, leftover: Version = Version()) -> tuple[Version, ...]:  # noqa: B008
    """All slot versions still have the state of an earlier job."""
    return (leftover,) * (setting.versions * setting.slots)


SETTINGS = [
    Setting(workers=2, slots=1, chunks=5),
    Setting(workers=2, slots=2, chunks=5),
    Setting(workers=3, slots=1, chunks=3),
    Setting(workers=3, slots=2, chunks=4),
]
LEFTOVERS = {
    "a fresh switch": Version(),
    "an older job's newer chunk": Version(
        epoch=1, chunk=2**31 - 1, members=0b11, sum=Sum(checksum=0xABCDEF), final=True
    ),
}


@pytest.mark.parametrize("leftover", LEFTOVERS.values(), ids=LEFTOVERS)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_no_run_gives_a_wrong_sum_or_loses_a_result(setting: Setting, leftover: Version) -> None:
    check_progress(setting, explore(setting, fresh(setting, leftover)))


ACROSS_THE_WRAP = [
    Setting(workers=2, slots=1, chunks=5, first_chunk=2**32 - 2),
    Setting(workers=2, slots=2, chunks=6, first_chunk=2**32 - 2),
    Setting(workers=2, slots=1, chunks=4, first_chunk=2**32 - 2, damaged=1),
]


@pytest.mark.parametrize("setting", ACROSS_THE_WRAP, ids=str)
def test_nor_where_chunk_numbers_wrap(setting: Setting) -> None:
    check_progress(setting, explore(setting, fresh(setting)))


DAMAGED = [
    Setting(workers=2, slots=1, chunks=5, damaged=1),
    Setting(workers=2, slots=2, chunks=4, damaged=1),
    Setting(workers=3, slots=1, chunks=3, damaged=1),
]


@pytest.mark.parametrize("setting", DAMAGED, ids=str)
def test_a_contribution_that_says_another_chunk_or_rank_loses_no_result(setting: Setting) -> None:
    check_progress(setting, explore(setting, fresh(setting)))


def test_the_exploration_finds_what_a_single_version_breaks() -> None:
    setting = Setting(workers=2, slots=1, chunks=3, versions=1)
    with pytest.raises(ViolationError, match="still needed"):
        explore(setting, fresh(setting))


def test_the_exploration_finds_what_a_damaged_chunk_breaks_where_any_older_one_gives_way() -> None:
    setting = Setting(workers=2, slots=1, chunks=3, damaged=1, looks_back=False)
    with pytest.raises(ViolationError, match=r"still needed|has no answer"):
        explore(setting, fresh(setting))


def test_the_exploration_finds_a_switch_that_holds_back_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(held: Version, query: Query, everybody: int) -> Outcome:
        outcome = rules.ask(held, query, everybody)
        return outcome._replace(leaves=Leaves.SAY_HELD) if held.final else outcome

    setting = Setting(workers=2, slots=1, chunks=2)
    monkeypatch.setattr("tests.conformance.test_slot_rules.ask", deaf)
    with pytest.raises(ViolationError, match="never lead"):
        check_progress(setting, explore(setting, fresh(setting)))
