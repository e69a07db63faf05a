# SPDX-License-Identifier: Apache-2.0
"""Every run of the slot rules (protocol 5.2 and 6) with few workers and chunks: any packet that was ever sent is
delivered any number of times, in any order, at any later time.

A state holds what each worker waits for, the slot versions, and which results have left the switch. Packets need no
place in it: the network may deliver all that was ever sent, and that follows from the rest. A contribution's checksum
is a bit of its own, so that a sum says whose contributions it holds.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from reference_switch import Contribution, Version, step

EPOCH = 2


class Setting(NamedTuple):
    workers: int
    slots: int
    chunks: int
    first_chunk: int = 0
    versions: int = 2  # of a slot; fewer must fail


class State(NamedTuple):
    # By worker and slot: chunks whose result the worker has.
    have: tuple[tuple[int, ...], ...]
    versions: tuple[Version, ...]
    results: frozenset[int]  # chunks whose result has left the switch


class ViolationError(Exception):
    pass


def contribution(setting: Setting, worker: int, chunk: int) -> Contribution:
    number = (setting.first_chunk + chunk) % 2**32
    return Contribution(EPOCH, number, 1 << worker, checksum=1 << (chunk * setting.workers + worker))


def right_sum(setting: Setting, chunk: int) -> int:
    return sum(1 << (chunk * setting.workers + worker) for worker in range(setting.workers))


def sent(setting: Setting, state: State) -> Iterator[tuple[int, int]]:
    """(worker, chunk) of each contribution sent so far: of a slot's chunks one more than have come back."""
    for worker, have in enumerate(state.have):
        for chunk in range(setting.chunks):
            if chunk // setting.slots <= have[chunk % setting.slots]:
                yield worker, chunk


def deliver_contribution(setting: Setting, state: State, worker: int, chunk: int) -> State:
    packet = contribution(setting, worker, chunk)
    index = packet.chunk % (setting.versions * setting.slots)
    held, action = step(state.versions[index], packet, 2**setting.workers - 1)
    if action == "started" and state.versions[index].epoch == EPOCH:
        overwritten = (state.versions[index].chunk - setting.first_chunk) % 2**32
        slot = overwritten % setting.slots
        if any(have[slot] <= overwritten // setting.slots for have in state.have):
            raise ViolationError(f"chunk {chunk} overwrites {overwritten}, whose result is still needed")
    results = state.results
    complete = held.workers == 2**setting.workers - 1
    if action == "result_resent" or (action in ("started", "added") and complete):
        if held.checksum != right_sum(setting, chunk):
            raise ViolationError(f"the result of chunk {chunk} sums {held.checksum:b}")
        results |= {chunk}
    versions = (*state.versions[:index], held, *state.versions[index + 1 :])
    return State(state.have, versions, results)


def deliver_result(setting: Setting, state: State, worker: int, chunk: int) -> State:
    have = list(state.have[worker])
    if have[chunk % setting.slots] != chunk // setting.slots:
        return state  # a duplicate
    have[chunk % setting.slots] += 1
    return state._replace(have=(*state.have[:worker], tuple(have), *state.have[worker + 1 :]))


def successors(setting: Setting, state: State) -> Iterator[State]:
    for worker, chunk in sent(setting, state):
        yield deliver_contribution(setting, state, worker, chunk)
    for chunk in state.results:
        for worker in range(setting.workers):
            if (worker, chunk) in set(sent(setting, state)):
                yield deliver_result(setting, state, worker, chunk)


def explore(setting: Setting, leftover: Version) -> dict[State, set[State]]:
    """Every reachable state, and those that lead to it in one step. Raises ViolationError."""
    # All slot versions hold what an earlier job left behind.
    start = State(
        ((0,) * setting.slots,) * setting.workers,
        (leftover,) * (setting.versions * setting.slots),
        frozenset(),
    )
    predecessors: dict[State, set[State]] = {start: set()}
    unexplored = [start]
    while unexplored:
        state = unexplored.pop()
        for following in successors(setting, state):
            if following not in predecessors:
                predecessors[following] = set()
                unexplored.append(following)
            predecessors[following].add(state)
    return predecessors


def finished(setting: Setting, state: State) -> bool:
    return all(sum(have) == setting.chunks for have in state.have)


SETTINGS = [
    Setting(workers=2, slots=1, chunks=5),
    Setting(workers=2, slots=2, chunks=5),
    Setting(workers=3, slots=1, chunks=3),
    Setting(workers=2, slots=1, chunks=5, first_chunk=2**32 - 2),
    Setting(workers=2, slots=2, chunks=6, first_chunk=2**32 - 2),
    Setting(workers=3, slots=2, chunks=4),
]
LEFTOVERS = {
    "a fresh switch": Version(),
    "an older job's newer chunk": Version(epoch=1, chunk=2**31 - 1, workers=0b11, checksum=0xABCDEF),
}


@pytest.mark.parametrize("leftover", LEFTOVERS.values(), ids=LEFTOVERS)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_no_run_gives_a_wrong_sum_or_loses_a_result(setting: Setting, leftover: Version) -> None:
    reachable = explore(setting, leftover)
    ends = [state for state in reachable if finished(setting, state)]
    assert ends
    # And none is a dead end: the last result can be reached from everywhere.
    leads_to_the_end = set(ends)
    unexplored = list(ends)
    while unexplored:
        for state in reachable[unexplored.pop()] - leads_to_the_end:
            leads_to_the_end.add(state)
            unexplored.append(state)
    assert leads_to_the_end == set(reachable)


def test_the_exploration_finds_what_a_single_version_breaks() -> None:
    with pytest.raises(ViolationError, match="still needed"):
        explore(Setting(workers=2, slots=1, chunks=3, versions=1), Version())
