# SPDX-License-Identifier: Apache-2.0
"""Slot leases and numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inagg_controller.jobs.leases import Lease, LeasePool, Numbers


def take(pool: LeasePool, size: int) -> Lease:
    """Take a lease. The pool must have room."""
    lease = pool.take(size)
    assert lease is not None
    return lease


def test_leases_are_aligned_to_their_size_and_do_not_overlap() -> None:
    pool = LeasePool(64)
    assert [pool.take(size) for size in (4, 16, 4, 32)] == [
        Lease(0, 4),
        Lease(16, 16),
        Lease(4, 4),
        Lease(32, 32),
    ]
    assert pool.free == 8


def test_the_smallest_hole_that_fits_is_used() -> None:
    pool = LeasePool(32)
    first, second, third = take(pool, 8), take(pool, 4), take(pool, 4)
    pool.give_back(first)
    assert pool.take(8) == Lease(0, 8)
    pool.give_back(second)
    assert pool.take(4) == Lease(8, 4)
    assert third == Lease(12, 4)


def test_a_full_pool_gives_nothing_and_stays_as_it_is() -> None:
    pool = LeasePool(8)
    lease = take(pool, 8)
    assert pool.take(2) is None
    assert pool.leases == (lease,)


def test_more_than_the_pool_is_never_given() -> None:
    assert LeasePool(8).take(16) is None


def test_giving_back_what_was_not_taken_is_an_error() -> None:
    pool = LeasePool(8)
    lease = take(pool, 4)
    pool.give_back(lease)
    with pytest.raises(ValueError, match="not leased"):
        pool.give_back(lease)


def test_freed_neighbours_make_room_for_a_large_lease() -> None:
    pool = LeasePool(16)
    leases = [take(pool, 4) for _ in range(4)]
    for lease in leases[:2]:
        pool.give_back(lease)
    assert pool.take(8) == Lease(0, 8)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6), st.integers(0, 30))))
def test_no_sequence_makes_leases_overlap_or_lose_space(steps: list[tuple[bool, int, int]]) -> None:
    pool = LeasePool(64)
    held: list[Lease] = []
    for takes, exponent, which in steps:
        if takes:
            lease = pool.take(1 << exponent)
            if lease is not None:
                held.append(lease)
        elif held:
            pool.give_back(held.pop(which % len(held)))
        owned = [slot for lease in held for slot in range(lease.base, lease.base + lease.size)]
        assert len(owned) == len(set(owned))
        assert all(0 <= slot < 64 for slot in owned)
        assert all(lease.base % lease.size == 0 for lease in held)
        assert pool.free == 64 - len(owned)


def test_numbers_come_back_only_after_all_others() -> None:
    numbers = Numbers(1, 4)
    assert [numbers.take() for _ in range(3)] == [1, 2, 3]
    numbers.give_back(1)
    numbers.give_back(2)
    assert [numbers.take() for _ in range(3)] == [4, 1, 2]
    assert numbers.take() is None
    numbers.give_back(3)
    assert numbers.take() == 3
