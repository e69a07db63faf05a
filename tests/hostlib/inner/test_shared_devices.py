# SPDX-License-Identifier: Apache-2.0
"""The groups of a process share gloo's devices; each knows its own connections."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from inagg.inner.devices import Devices
from inagg.inner.group import ForwardingGroup
from inagg.membership.assembly import Assembly
from inagg.membership.sockets import listeners
from tests.waiting import wait_until

RANKS = 3
LIMIT = timedelta(seconds=20)


def make(store: HashStore) -> list[ForwardingGroup]:
    """A group of ranks that are threads of this process: one object a rank."""

    def run(rank: int) -> ForwardingGroup:
        group = ForwardingGroup(store, rank, RANKS, LIMIT)
        with Assembly(store, rank, RANKS, LIMIT) as ranks:
            group.form_inner(ranks, store, "127.0.0.1")
        return group

    with ThreadPoolExecutor(RANKS) as threads:
        return list(threads.map(run, range(RANKS)))


@contextmanager
def made(store: HashStore) -> Iterator[list[ForwardingGroup]]:
    groups = make(store)
    try:
        yield groups
    finally:
        end(groups)


def end(groups: list[ForwardingGroup]) -> None:
    for group in groups:
        group.end_inner()


def works(groups: list[ForwardingGroup], elements: int = 3) -> bool:
    """Whether the ranks can sum."""
    tensors = [torch.ones(elements, dtype=torch.float64) for _ in groups]
    works = [group.allreduce([tensor]) for group, tensor in zip(groups, tensors, strict=True)]
    return all(work.wait() for work in works) and all(tensor.eq(RANKS).all() for tensor in tensors)


def devices() -> int:
    """Gloo's devices that are open: each listens at a port, until its thread has ended."""
    return len(list(listeners()))


def test_a_later_group_uses_the_devices_of_an_earlier_one() -> None:
    before = devices()
    with made(HashStore()) as first:
        assert devices() - before == RANKS  # while a group connects, each of its ranks has its own
        with made(HashStore()) as second:
            assert devices() - before == RANKS
            assert works(first)
            assert works(second)
    wait_until(lambda: devices() == before, "the devices have ended")


def test_groups_that_are_made_at_the_same_time_do_not_share_devices() -> None:
    with ThreadPoolExecutor(2) as programs:
        first, second = programs.map(make, (HashStore(), HashStore()))
    try:
        first[0]._connections.break_off()
        with pytest.raises(RuntimeError):
            works(first)
        assert works(second)
    finally:
        end(first)
        end(second)


def test_a_group_that_breaks_off_leaves_the_others_on_its_devices_alone() -> None:
    with made(HashStore()) as first, made(HashStore()) as second, made(HashStore()) as third:
        for groups in (first, second, third):
            assert works(groups)
        others = (*first, *third)
        before = [group._connections.carried() for group in others]
        assert works(second, elements=100_000)
        moved = [group._connections.carried() - then for group, then in zip(others, before, strict=True)]
        assert max(moved) < 1000  # acknowledgements of their own sums
        second[1]._connections.break_off()
        with pytest.raises(RuntimeError):
            works(second)
        assert works(first)
        assert works(third)


def test_devices_are_lent_to_one_group_at_a_time_and_end_with_the_last() -> None:
    with ExitStack() as stack:
        first = Devices.lend("127.0.0.1")
        stack.callback(first.give_back)
        second = Devices.lend("127.0.0.1")
        stack.callback(second.give_back)
        assert first is not second
        first.connected()
        again = Devices.lend("127.0.0.1")
        stack.callback(again.give_back)
        assert again is first
        assert set(first.listeners).isdisjoint(second.listeners)
    assert first.devices == second.devices == []


def test_a_group_that_cannot_be_made_gives_its_devices_back() -> None:
    before = devices()

    def run(rank: int) -> None:
        group = ForwardingGroup(HashStore(), rank, 2, LIMIT)
        with Assembly(HashStore(), rank, 2, timedelta(seconds=0.05)) as ranks:
            group.form_inner(ranks, HashStore(), "127.0.0.1")

    with pytest.raises(Exception, match="did not come"):
        run(0)
    wait_until(lambda: devices() == before, "the devices have ended")
