# SPDX-License-Identifier: Apache-2.0
"""The text of a collective has everything that all ranks must agree on, and nothing that may differ."""

from typing import Any

import pytest
import torch
import torch.distributed as dist

from inagg.sums.calls import describe, is_collective, sum_text
from inagg.sums.journal import Journal
from inagg_contract.documents import CallDocument


def options(kind: type, **fields: Any) -> Any:
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


ONES = torch.ones(10)
INTEGERS = torch.ones(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("allreduce", ([ONES], options(dist.AllreduceOptions)), "all_reduce(SUM, float32[10])"),
        ("allreduce", ([ONES[:0], INTEGERS], dist.ReduceOp.MAX), "all_reduce(MAX, float32[0], int64[6])"),
        ("allreduce", ([ONES],), "all_reduce(SUM, float32[10])"),
        ("broadcast", ([ONES], options(dist.BroadcastOptions, rootRank=2)), "broadcast(float32[10], src=2)"),
        ("broadcast", (ONES, 1), "broadcast(float32[10], src=1)"),
        ("reduce", ([ONES], options(dist.ReduceOptions, rootRank=3)), "reduce(SUM, float32[10], dst=3)"),
        ("gather", ([], [ONES], options(dist.GatherOptions)), "gather(float32[10], dst=0)"),
        ("scatter", ([ONES], [], options(dist.ScatterOptions)), "scatter(float32[10], src=0)"),
        ("allgather", ([[ONES, ONES[:4]]], [ONES[:4]]), "all_gather(float32[14])"),
        ("reduce_scatter", ([ONES[:4]], [[ONES, ONES[:4]]]), "reduce_scatter(SUM, float32[14])"),
        ("alltoall_base", (ONES, ONES[:3], [], []), "all_to_all(float32)"),
        ("barrier", (), "barrier()"),
    ],
)
def test_texts(method: str, arguments: tuple[Any, ...], text: str) -> None:
    assert describe(method, arguments) == text


def test_narrow_lanes_are_part_of_it() -> None:
    assert describe("allreduce", ([ONES],), 16) == "all_reduce(SUM, float32[10], 16-bit lanes)"
    assert describe("allreduce", ([ONES],), 32) == "all_reduce(SUM, float32[10])"


def test_what_goes_from_rank_to_rank_is_none() -> None:
    assert not any(map(is_collective, ("send", "recv", "recv_anysource", "monitored_barrier")))


def test_the_digest_is_of_all_texts() -> None:
    first, second = Journal(), Journal()
    first.begin("a")
    second.begin("b")
    assert first.begin("c") != second.begin("c")
    # CRC-32 of "barrier()1" (docs/protocol.md, 7.1).
    journal = Journal()
    journal.begin("barrier()")
    assert journal.begin("1") == 0x74DB3802


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("lane_bits", [32, 16])
def test_the_short_way_to_a_text_says_the_same(average: bool, lane_bits: int) -> None:
    operation = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
    assert sum_text(10, average, lane_bits) == describe("allreduce", ([ONES], operation), lane_bits)


def test_a_call_of_many_tensors_has_a_text_that_the_controller_takes() -> None:
    long = describe("allreduce_coalesced", ([ONES] * 100, options(dist.AllreduceCoalescedOptions)))
    other = describe(
        "allreduce_coalesced", ([ONES] * 99 + [ONES[1:]], options(dist.AllreduceCoalescedOptions))
    )
    assert "(100 tensors, CRC-32" in long
    assert long != other
    CallDocument(digest=0, text=long)
