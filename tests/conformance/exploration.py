# SPDX-License-Identifier: Apache-2.0
"""Explores every state of a model, and finds those from which it cannot end."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

S = TypeVar("S", bound=Hashable)
T = TypeVar("T")


class ViolationError(Exception):
    """A model has done what its rules exclude."""


def explore(
    start: S,
    successors: Callable[[S], Iterable[S]],
    repairs: Callable[[S], Iterable[S]],
    has_ended: Callable[[S], bool],
) -> int:
    """Explore everything that `successors` and `repairs` lead to. Returns the number of states.

    Raises ViolationError if from some state repairs alone do not lead to one that has ended.
    """
    predecessors: dict[S, set[S]] = {start: set()}
    unexplored = [start]
    while unexplored:
        state = unexplored.pop()
        repaired = set(repairs(state))
        for following in repaired.union(successors(state)):
            if following not in predecessors:
                predecessors[following] = set()
                unexplored.append(following)
        for following in repaired:
            predecessors[following].add(state)
    ends = [state for state in predecessors if has_ended(state)]
    alive, unexplored = set(ends), list(ends)
    while unexplored:
        for state in predecessors[unexplored.pop()] - alive:
            alive.add(state)
            unexplored.append(state)
    if not ends or len(alive) < len(predecessors):
        raise ViolationError("some states never lead to the last result")
    return len(predecessors)


def replaced(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    """The tuple with another item at an index."""
    return (*items[:index], item, *items[index + 1 :])
