# SPDX-License-Identifier: Apache-2.0
"""Ranks see by gloo's connections which of the others' processes have ended, also several ranks of one host."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests import forks
from tests.controller.launching import read_line
from tests.free_ports import free_port

RANKS = 4
WORKER = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
from inagg.inner.group import ForwardingGroup
from inagg.membership.assembly import Assembly
rank, size, port = map(int, sys.argv[1:])
store = TCPStore("127.0.0.1", port, size, is_master=rank == 0)
with Assembly(store, rank, size, timedelta(seconds=60)) as ranks:
    group = ForwardingGroup(store, rank, size, timedelta(seconds=60))
    group.form_inner(ranks, ranks.inner_store, "127.0.0.1")
print("in", flush=True)
for count in sys.stdin:
    while len(ended := group._connections.ended()) < int(count):
        pass
    print(*ended, flush=True)
"""


@pytest.fixture
def ranks() -> Iterator[list[forks.Process]]:
    port = str(free_port())
    with ExitStack() as stack:
        processes = []
        for rank in range(RANKS):
            words = (sys.executable, "-c", WORKER, str(rank), str(RANKS), port)
            process = forks.start_piped(*words, modules=forks.OF_RANKS)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes.append(process)
        assert [read_line(process) for process in processes] == ["in"] * RANKS
        yield processes


def ended(process: forks.Process, count: int) -> list[int]:
    """The ranks that a rank knows to have ended, once they are so many."""
    assert process.stdin is not None
    process.stdin.write(f"{count}\n")
    return [int(rank) for rank in read_line(process).split()]


@pytest.mark.parametrize("order", [[1, 2], [3, 1], [0, 2]])
def test_ranks_that_share_an_address_are_told_apart(ranks: list[forks.Process], order: list[int]) -> None:
    living = set(range(RANKS))
    assert all(ended(ranks[rank], 0) == [] for rank in living)
    for number, dead in enumerate(order, 1):
        ranks[dead].kill()
        living.remove(dead)
        found = [ended(ranks[rank], number) for rank in living]
        assert found == [sorted(order[:number])] * len(living)
