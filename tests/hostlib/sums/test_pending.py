# SPDX-License-Identifier: Apache-2.0
"""Finding sums under way by their memory; the cost does not grow with their number."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from inagg.sums.pending import Pending
from inagg.sums.reduction import Reduction


class Sum:
    """The part of a Reduction that `Pending` reads, with a count of the reads."""

    looks = 0

    def __init__(self, ticket: int, memory: range) -> None:
        self.ticket = ticket
        self._memory = memory

    @property
    def memory(self) -> range:
        Sum.looks += 1
        return self._memory


MEMORY = st.builds(lambda start, size: range(start, start + size), st.integers(0, 60), st.integers(0, 12))


@given(st.lists(st.tuples(MEMORY, st.booleans()), max_size=40))
def test_those_that_overlap_are_found_and_no_others(steps: list[tuple[range, bool]]) -> None:
    pending, known = Pending(), dict[int, Any]()
    for ticket, (memory, remove_one) in enumerate(steps):
        expected = {other for other, one in known.items() if set(memory) & set(one.memory)}
        found = pending.overlapping(memory)
        assert {one.ticket for one in found} == expected
        for other in expected:
            pending.remove(known.pop(other))
        known[ticket] = cast(Reduction, Sum(ticket, memory))
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
        pending.add(cast(Reduction, Sum(ticket, memory)))
        looks.append(Sum.looks)
    assert max(looks) <= 4
