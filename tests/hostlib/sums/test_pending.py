# SPDX-License-Identifier: Apache-2.0
"""Finding sums under way by their memory; the cost does not grow with their number."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from hypothesis import given
from hypothesis import strategies as st

from inagg.sums.pending import Pending
from inagg.sums.reduction import Reduction, memories_of


class Sum:
    """The part of a Reduction that `Pending` reads, with a count of the reads."""

    looks = 0

    def __init__(self, ticket: int, memories: Sequence[range]) -> None:
        self.ticket = ticket
        self._memories = memories

    @property
    def memories(self) -> Sequence[range]:
        Sum.looks += 1
        return self._memories


# One to three memories, ascending.
MEMORIES = st.lists(st.integers(0, 60), min_size=2, max_size=6, unique=True).map(
    lambda bounds: [range(*pair) for pair in zip(sorted(bounds)[::2], sorted(bounds)[1::2], strict=False)]
)


def addresses(memories: Sequence[range]) -> set[int]:
    return {address for memory in memories for address in memory}


@given(st.lists(st.tuples(MEMORIES, st.booleans()), max_size=40))
def test_those_that_overlap_are_found_and_no_others(steps: list[tuple[list[range], bool]]) -> None:
    pending, known = Pending(), dict[int, Any]()
    for ticket, (memories, remove_one) in enumerate(steps):
        expected = {other for other, one in known.items() if addresses(memories) & addresses(one.memories)}
        found = {one.ticket for memory in memories for one in pending.overlapping(memory)}
        assert found == expected
        for other in expected:
            pending.remove(known.pop(other))
        known[ticket] = cast(Reduction, Sum(ticket, memories))
        pending.add(known[ticket])
        first = pending.first()
        assert first is not None
        assert first.ticket == min(known)
        if remove_one:
            gone = known.pop(min(known))
            pending.remove(gone)
            pending.remove(gone)
        assert len(pending) == len(known)


def test_a_sum_costs_as_much_beside_a_thousand_others_as_alone() -> None:
    pending = Pending()
    looks = []
    for ticket in range(1000):
        Sum.looks = 0
        memory = range(10 * (ticket * 7 % 1000), 10 * (ticket * 7 % 1000) + 10)
        assert pending.overlapping(memory) == []
        pending.add(cast(Reduction, Sum(ticket, [memory])))
        looks.append(Sum.looks)
    assert max(looks) <= 4


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 12)), max_size=8))
def test_memories_of_tensors_are_merged_where_they_touch(places: list[tuple[int, int]]) -> None:
    whole = torch.zeros(64)
    tensors = [whole[start : start + size] for start, size in places]
    merged = memories_of(tensors)
    base = whole.data_ptr()
    expected = {
        base + 4 * element + byte
        for start, size in places
        for element in range(start, start + size)
        for byte in range(4)
    }
    assert addresses(merged) == expected
    assert all(one.stop < other.start for one, other in pairwise(merged))
