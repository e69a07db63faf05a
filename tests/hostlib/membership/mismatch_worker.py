# SPDX-License-Identifier: Apache-2.0
"""One rank of test_mismatch.py: ranks that call different collectives, each case in a group of its own.

Writes one JSON line a case: the error that this rank got, and how long it took.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import inagg
from inagg.errors import ConfigurationError, MismatchError

Case = Callable[[int, dist.ProcessGroup], object]
CASES: list[Case] = []


def case(function: Case) -> Case:
    CASES.append(function)
    return function


@case
def sizes(rank: int, group: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(1000 + (rank == 1)), group=group)


@case
def types(rank: int, group: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(1000, dtype=torch.int16 if rank == 1 else torch.float32), group=group)


@case
def order(rank: int, group: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(10), group=group)
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(torch.ones(1000), group=group),
        lambda: dist.broadcast(torch.ones(10), group_src=0, group=group),
    ]
    for call in calls if rank == 1 else reversed(calls):
        call()


@case
def of_one_length_in_bytes_before_a_sum(rank: int, group: dist.ProcessGroup) -> None:
    # Gloo adds the bits of different types and reports no error.
    tensor = torch.ones(10, dtype=torch.int32 if rank == 1 else torch.float32)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
    dist.all_reduce(torch.ones(1000), group=group)


@case
def both_within_the_inner_group(rank: int, group: dist.ProcessGroup) -> None:
    if rank == 1:
        dist.barrier(group=group)
    else:
        dist.broadcast(torch.ones(10), group_src=1, group=group)
    # With some of gloo's algorithms a rank may be done already; here it waits for the others.
    dist.barrier(group=group)


@case
def late_but_right(rank: int, group: dist.ProcessGroup) -> None:
    if rank == 1:
        time.sleep(1.5)  # a few heartbeats
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=group)
    dist.barrier(group=group)
    assert tensor.tolist() == [dist.get_world_size()] * 10
    # All ranks learn with the next heartbeats who was late.
    deadline = time.monotonic() + 10
    while (found := inagg.stats(group)["straggler"]) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found is not None
    assert found["rank"] == 1, found
    assert 1.3 < found["late_s"] < 5, found


def groups_in_different_order(rank: int) -> dict[str, object]:
    """Ranks make the groups [0, 2] and [0, 1] in different orders. Reports how far each comes."""
    with pytest.raises(ConfigurationError) as caught:
        dist.new_group([0, 1] if rank == 1 else [0, 2], backend="inagg")
    return {"case": "groups_in_different_order", "error": str(caught.value)}


def main() -> None:
    dist.init_process_group("inagg")
    rank = dist.get_rank()
    with Path(sys.argv[1]).open("a") as results:
        for run in CASES:
            group = dist.new_group(backend="inagg")
            assert group is not None
            start = time.monotonic()
            row: dict[str, object] = {"case": run.__name__, "error": None}
            try:
                run(rank, group)
            except MismatchError as error:
                row |= {"error": str(error), "collective": error.collective, "calls": error.calls}
            except Exception as error:
                row |= {"error": repr(error), "collective": None, "calls": {}}
            row["seconds"] = time.monotonic() - start
            results.write(json.dumps(row) + "\n")
            results.flush()
            dist.all_reduce(torch.ones(1))  # the world's group still works
            dist.destroy_process_group(group)
        if rank < 2:  # last, since torch then counts groups differently
            results.write(json.dumps(groups_in_different_order(rank)) + "\n")
    assert inagg.stats()["path"] == "switch"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
