# SPDX-License-Identifier: Apache-2.0
"""Every reachable state of a model, and what an implementation does in it with every packet."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)
P = TypeVar("P")


class After(NamedTuple, Generic[S]):
    """What a packet leads to: the state, what leaves, and the counters of the packet."""

    state: S
    sent: Sequence[Any]
    counters: Sequence[str]


class Model(Protocol[S, P]):
    """A job on a few slots, by the rules."""

    @property
    def start(self) -> S: ...
    @property
    def packets(self) -> Sequence[P]: ...
    def step(self, state: S, packet: P) -> After[S]: ...


class Step(NamedTuple, Generic[S, P]):
    """A packet in a state. path: the packets that lead to the state from the start."""

    state: S
    path: tuple[P, ...]
    packet: P
    after: After[S]


# Of (state, path, packet).
Implementation = Callable[[S, Sequence[P], P], After[S]]


class DifferenceError(Exception):
    """An implementation does not do what the rules say."""


def steps(model: Model[S, P]) -> Iterator[Step[S, P]]:
    """Every packet in every reachable state."""
    paths: dict[S, tuple[P, ...]] = {model.start: ()}
    unexplored = deque(paths)
    while unexplored:
        state = unexplored.popleft()
        path = paths[state]
        for packet in model.packets:
            after = model.step(state, packet)
            yield Step(state, path, packet, after)
            if after.state not in paths:
                paths[after.state] = (*path, packet)
                unexplored.append(after.state)


def compare(model: Model[S, P], implementation: Implementation[S, P]) -> int:
    """Compare an implementation with the rules. Returns the number of steps. Raises DifferenceError."""
    count = 0
    for state, path, packet, right in steps(model):
        found = implementation(state, path, packet)
        if found != right:
            raise DifferenceError(
                f"{packet}\nin {state}\nafter {path}\nshould lead to {right}\nbut leads to {found}"
            )
        count += 1
    return count
