# SPDX-License-Identifier: Apache-2.0
"""Cases of test_collectives.py: shapes, types and order of collectives of the inner group. In the staged runs they go
through host copies, as those of CUDA tensors do. With `torch.device` as context they are cases for that device."""

import warnings
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as differentiable
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.distributed_c10d import _coalescing_manager

from inagg.errors import ConfigurationError
from inagg.groups import inagg_group
from inagg.torch_versions import GLOO_REDUCE_SCATTER_ONLY_SUMS
from tests.hostlib.backend.collectives_cases import case

SIZE = 3  # elements of a rank's part


def numbered(rank: int, elements: int = SIZE, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Elements that differ between ranks and places, and are exact in every type."""
    return (torch.arange(elements) + 10 * (rank + 1)).to(dtype)


def of_all(elements: int = SIZE, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.cat([numbered(rank, elements) for rank in range(dist.get_world_size())]).to(dtype)


def copied() -> bool:
    """Whether the collectives go through host copies."""
    return inagg_group(None).options.stage_cpu or torch.get_default_device().type == "cuda"


@case
def gathers_into_any_contiguous_shape() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for elements in (SIZE, 1, 0):
        for shape in ((1, ranks * elements), (ranks, elements), (ranks * elements,), (elements, ranks, 1)):
            for given in (numbered(rank, elements), numbered(rank, elements).view(1, 1, elements)):
                gathered = torch.zeros(shape)
                dist.all_gather_into_tensor(gathered, given)
                assert gathered.view(-1).tolist() == of_all(elements).tolist(), (shape, given.shape)
    gathered = torch.zeros(ranks)
    dist.all_gather_into_tensor(gathered, torch.tensor(float(rank)))
    assert gathered.tolist() == [*range(ranks)]
    several = [torch.zeros(1, ranks * SIZE), torch.zeros(SIZE, ranks)]
    with _coalescing_manager():
        for one in several:
            dist.all_gather_into_tensor(one, numbered(rank))
    assert all(one.view(-1).tolist() == of_all().tolist() for one in several)


@case
def scatters_and_exchanges_of_any_contiguous_shape() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.float64):  # through the switch; through the inner group
        for shape in ((1, ranks * SIZE), (ranks, SIZE), (ranks * SIZE,)):
            given = of_all(dtype=dtype).view(shape)
            for part in (torch.zeros(SIZE, dtype=dtype), torch.zeros(1, SIZE, dtype=dtype)):
                dist.reduce_scatter_tensor(part, given)
                assert torch.equal(part.view(-1), numbered(rank, dtype=dtype) * ranks)
            exchanged = torch.zeros_like(given)
            dist.all_to_all_single(exchanged, (given + 100 * rank).view(shape))
            expected = torch.cat([numbered(rank, dtype=dtype) + 100 * other for other in range(ranks)])
            assert torch.equal(exchanged.view(-1), expected)
            parts = [torch.zeros(1, SIZE, dtype=dtype) for _ in range(ranks)]
            dist.all_to_all(parts, list((given + 100 * rank).view(ranks, 1, SIZE)))
            assert torch.equal(torch.cat(parts).view(-1), expected)
    rows = torch.full((sum(range(ranks + 1)), 2), float(rank))  # to rank r go r + 1 rows
    received = torch.zeros((rank + 1) * ranks, 2)
    dist.all_to_all_single(received, rows, [rank + 1] * ranks, [other + 1 for other in range(ranks)])
    assert received[:, 1].tolist() == [float(other) for other in range(ranks) for _ in range(rank + 1)]


@case
def sizes_that_do_not_fit_are_refused_on_all_ranks_and_the_group_goes_on() -> None:
    ranks = dist.get_world_size()
    part, whole, double = torch.ones(SIZE), torch.ones(ranks * SIZE + 1), torch.float64
    for call in (
        lambda: dist.all_gather_into_tensor(whole, part),
        lambda: dist.all_gather_into_tensor(whole.view(1, -1), part, async_op=True),
        lambda: dist.reduce_scatter_tensor(part, whole),
        lambda: dist.reduce_scatter_tensor(part.to(double), whole.to(double)),
        lambda: dist.all_to_all_single(torch.ones(ranks * SIZE), whole),
    ):
        with pytest.raises(ConfigurationError, match=rf"in a group of {ranks}: .*; the output needs"):
            call()
    dist.all_gather_into_tensor(torch.zeros(ranks * SIZE), part)


@case
def every_type_is_moved_as_it_is() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    types = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8]
    types += [torch.bool, torch.complex64, torch.complex128]
    if copied():  # gloo itself refuses these
        types += [torch.int16, torch.uint16, torch.float8_e4m3fn]
    for dtype in types:
        mine, everything = numbered(rank, dtype=dtype), of_all(dtype=dtype)
        gathered = [torch.zeros_like(mine) for _ in range(ranks)]
        dist.all_gather(gathered, mine)
        assert bytes_of(*gathered) == bytes_of(everything), dtype
        tensor = mine.clone()
        dist.broadcast(tensor, ranks - 1)
        assert bytes_of(tensor) == bytes_of(numbered(ranks - 1, dtype=dtype)), dtype
        exchanged = torch.zeros_like(everything)
        dist.all_to_all_single(exchanged, everything, [SIZE] * ranks, [SIZE] * ranks)
        assert bytes_of(exchanged) == bytes_of(*[mine] * ranks), dtype


def bytes_of(*tensors: torch.Tensor) -> list[int]:
    return [byte for tensor in tensors for byte in tensor.view(torch.uint8).tolist()]


@case
def reductions_that_the_switch_does_not_do_have_the_right_elements() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stacked = of_all().view(ranks, SIZE)
    for operation, expected in (
        (dist.ReduceOp.MAX, stacked.amax(0)),
        (dist.ReduceOp.MIN, stacked.amin(0)),
        (dist.ReduceOp.PRODUCT, stacked.prod(0)),
    ):
        tensor = numbered(rank)
        dist.all_reduce(tensor, op=operation)
        assert torch.equal(tensor, expected)
        for root in range(ranks):
            tensor = numbered(rank)
            dist.reduce(tensor, root, op=operation)
            assert torch.equal(tensor, expected if rank == root else numbered(rank))
        part = torch.zeros(SIZE)
        if GLOO_REDUCE_SCATTER_ONLY_SUMS and ranks > 1:
            with pytest.raises(ConfigurationError, match="would sum"):
                dist.reduce_scatter(part, [numbered(rank)] * ranks, op=operation)
        else:
            dist.reduce_scatter(part, [numbered(rank)] * ranks, op=operation)
            assert torch.equal(part, expected)
    doubles = [numbered(rank, dtype=torch.float64) for _ in range(2)]
    dist.all_reduce_coalesced(doubles)
    assert all(torch.equal(one, stacked.sum(0).double()) for one in doubles)


@case
def calls_without_waits_between_are_matched_in_their_order() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    there, back = (rank + 1) % ranks, (rank - 1) % ranks
    for _ in range(5):
        works: list[Any] = []
        received = torch.zeros(SIZE)
        if ranks > 1:  # the recv comes first on all ranks, and must not keep the send from being sent
            works.append(dist.irecv(received, back))
        gathered = torch.zeros(ranks * SIZE)
        works.append(dist.all_gather_into_tensor(gathered, numbered(rank), async_op=True))
        if ranks > 1:
            works.append(dist.isend(numbered(rank), there))
        greatest = numbered(rank)
        works.append(dist.all_reduce(greatest, op=dist.ReduceOp.MAX, async_op=True))
        works.append(dist.barrier(async_op=True))
        objects: list[object] = [None] * ranks
        dist.all_gather_object(objects, rank)
        for work in reversed(works):
            assert work.wait()
        assert objects == [*range(ranks)]
        assert torch.equal(gathered, of_all())
        assert torch.equal(greatest, numbered(ranks - 1))
        assert ranks == 1 or torch.equal(received, numbered(back))


@case
def a_message_shorter_than_its_tensor_leaves_the_rest() -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for source in (last, None):
        if rank == last > 0:
            dist.send(numbered(rank), 0)
        elif rank == 0 < last:
            received = torch.full((SIZE + 2,), 7.0)
            assert dist.recv(received, source) == last
            assert received.tolist() == [*numbered(last).tolist(), 7.0, 7.0]
    dist.barrier()


@case
def futures_have_the_result_and_callbacks_may_call_collectives() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def again(done: torch.futures.Future[Any]) -> torch.Tensor:
        done.value()
        second = torch.zeros(ranks * SIZE)
        dist.all_gather_into_tensor(second, gathered[:SIZE] + rank)
        return second

    for _ in range(3):  # more callbacks that wait than gloo has threads
        gathered = torch.zeros(ranks * SIZE)
        work = dist.all_gather_into_tensor(gathered, numbered(rank), async_op=True)
        assert work is not None
        second = work.get_future().then(again).wait()
        expected = torch.cat([numbered(0) + other for other in range(ranks)])
        assert torch.equal(second, expected)
    tensor = numbered(rank)
    work = dist.broadcast(tensor, 0, async_op=True)
    assert work is not None
    assert [torch.equal(one, numbered(0)) for one in work.get_future().wait()] == [True]


@case
def after_a_wait_the_future_is_done() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for begin in (
        lambda: dist.all_reduce(numbered(rank), async_op=True),  # through the switch
        lambda: dist.all_reduce(numbered(rank).double(), async_op=True),
        lambda: dist.broadcast(numbered(rank), 0, async_op=True),
        lambda: dist.broadcast(numbered(rank)[::2], 0, async_op=True),  # by a copy
        lambda: dist.all_gather_into_tensor(torch.zeros(ranks * SIZE), numbered(rank), async_op=True),
    ):
        for _ in range(20):
            work = begin()
            assert work is not None
            work.wait()
            assert work.get_future().done()
            work = begin()
            assert work is not None
            future = work.get_future()
            work.wait()
            assert future.done()


@case
def a_wait_with_a_timeout_ends_in_time() -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank == 0 < last:
        work = dist.broadcast(torch.zeros(SIZE), last, async_op=True)
        assert work is not None
        with pytest.raises(RuntimeError):
            work.wait(timedelta(milliseconds=50))
        dist.send(torch.ones(1), last)
        assert work.wait()
    elif last > 0:
        if rank == last:
            dist.recv(torch.zeros(1), 0)
        dist.broadcast(torch.zeros(SIZE), last)


@case
def functional_and_differentiable_collectives() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    world = [*range(ranks)]
    mine = numbered(rank)
    assert torch.equal(funcol.all_gather_tensor(mine, 0, world) + 0, of_all())
    assert torch.equal(funcol.broadcast(mine, 0, world) + 0, numbered(0))
    coalesced = funcol.all_gather_into_tensor_coalesced([mine, mine.double()], world)
    assert all(torch.equal((one + 0).float(), of_all()) for one in coalesced)
    assert torch.equal(
        funcol.reduce_scatter_tensor(of_all().double(), "sum", 0, world) + 0, mine.double() * ranks
    )
    assert torch.equal(funcol.all_to_all_single(of_all(), None, None, world) + 0, mine.repeat(ranks))
    assert torch.equal(
        funcol.permute_tensor(mine, [(one + 1) % ranks for one in world], world) + 0,
        numbered((rank - 1) % ranks),
    )
    leaf = mine.clone().requires_grad_()
    sum(part.square().sum() for part in differentiable.all_gather(leaf)).backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, 2 * mine * ranks)


@case
def results_go_to_parameters_and_to_tensors_of_inference_mode() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    weights = torch.nn.Parameter(numbered(rank))
    dist.broadcast(weights.data, ranks - 1)
    assert torch.equal(weights, numbered(ranks - 1))
    with torch.inference_mode():
        gathered, mine = torch.zeros(1, ranks * SIZE), numbered(rank)
        dist.all_gather_into_tensor(gathered, mine)
        assert torch.equal(gathered.view(-1), of_all())
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        assert torch.equal(mine, numbered(ranks - 1))


@case
def single_tensors_with_gaps() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def column() -> torch.Tensor:
        return torch.stack([numbered(rank), torch.full((SIZE,), -1.0)], 1)[:, 0]

    tensor = column()
    dist.broadcast(tensor, ranks - 1)
    assert torch.equal(tensor, numbered(ranks - 1))
    wide = torch.zeros(ranks * SIZE, 2)
    dist.all_gather_into_tensor(wide[:, 1], column())
    assert torch.equal(wide[:, 1], of_all())
    assert wide[:, 0].tolist() == [0.0] * ranks * SIZE
    dist.all_gather_into_tensor(wide.view(-1)[: ranks * SIZE], torch.ones(1).expand(SIZE))
    assert wide.view(-1)[: ranks * SIZE].tolist() == [1.0] * ranks * SIZE
    with pytest.raises(ConfigurationError, match="its elements share memory"):
        dist.all_gather_into_tensor(torch.ones(1).expand(ranks * SIZE), numbered(rank))


@case
def sharded_tensors_are_gathered_where_they_are() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    placements = [f"rank:{other}/cpu" for other in range(ranks)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of its own functions
        tensor = sharded_tensor.rand(ChunkShardingSpec(dim=0, placements=placements), 4 * ranks, 3)
        whole = torch.empty(4 * ranks, 3) if rank == 0 else None
        tensor.gather(0, whole)
        assert whole is None or torch.equal(whole[:4].cpu(), tensor.local_tensor())
        if not torch.cuda.is_available():  # with CUDA, ranks without a shard take the current GPU
            few = sharded_tensor.zeros(ChunkShardingSpec(dim=0, placements=placements[:1]), 4, 3)
            assert few.device.type == "cpu"
            assert few.to(torch.float64).dtype == torch.float64
