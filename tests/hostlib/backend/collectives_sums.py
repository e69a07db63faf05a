# SPDX-License-Identifier: Apache-2.0
"""Cases of test_collectives.py: reductions of every type, size, layout and operation."""

import math
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum
from torch.distributed.distributed_c10d import _coalescing_manager

import inagg
from inagg.errors import ConfigurationError
from tests.hostlib.backend.collectives_cases import (
    CASES,
    assert_same_everywhere,
    assert_sum,
    bound,
    case,
    contributions,
    normal,
    normals,
    through_switch,
)


def check_sum(make: Callable[[int], torch.Tensor]) -> None:
    tensor = make(dist.get_rank())
    dist.all_reduce(tensor)
    assert_sum(tensor, contributions(make))


def sized(elements: int) -> Callable[[], None]:
    def run() -> None:
        check_sum(lambda rank: normal(rank, elements))

    run.__name__ = f"size_{elements}"
    return run


CASES += [sized(elements) for elements in (0, 1, 2, 255, 256, 257, 1023, 16384, 16385, 1_000_003)]


@case
def scalar() -> None:
    tensor = torch.tensor(1.5)
    dist.all_reduce(tensor)
    assert tensor.item() == 1.5 * dist.get_world_size()
    assert tensor.shape == ()


@case
def average() -> None:
    tensor = normal(dist.get_rank(), 3000)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    inputs = contributions(lambda rank: normal(rank, 3000))
    once_more_rounded = 2.0**-24 * inputs.mean(0).abs().max().item()
    error = (tensor.double() - inputs.mean(0)).abs().max().item()
    assert error <= bound(inputs) / dist.get_world_size() + once_more_rounded
    assert_same_everywhere(tensor)


@case
def wide_range_of_magnitudes() -> None:
    # Blocks differ by 60 orders of magnitude; each has its own exponent, so each is right to its own scale.
    def make(rank: int) -> torch.Tensor:
        return normal(rank, 8, 256) * torch.logspace(-37, 30, 8).unsqueeze(1)

    tensor = make(dist.get_rank())
    dist.all_reduce(tensor)
    inputs = contributions(make)
    for block in range(8):
        assert_sum(tensor[block], inputs[:, block])


@case
def subnormals() -> None:
    check_sum(lambda rank: normal(rank, 700, scale=2.0**-140))


@case
def smallest_subnormal_is_exact() -> None:
    tensor = torch.full((5,), 2.0**-149)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((5,), dist.get_world_size() * 2.0**-149))


@case
def zeros() -> None:
    tensor = torch.zeros(1000)
    tensor[::2] = -0.0
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.zeros(1000))


@case
def overflow_is_infinity_as_in_floats() -> None:
    tensor = torch.tensor([3e38, -3e38, 1.0])
    dist.all_reduce(tensor)
    if dist.get_world_size() > 1:
        assert tensor[:2].tolist() == [math.inf, -math.inf]


@case
def integers_in_floats_are_exact() -> None:
    tensor = torch.arange(-4000, 4000).float() * (dist.get_rank() + 1)
    dist.all_reduce(tensor)
    ranks = dist.get_world_size()
    assert torch.equal(tensor, torch.arange(-4000, 4000).float() * (ranks * (ranks + 1) // 2))


def special(rank: int) -> torch.Tensor:
    """NaN and infinities of rank 0, 1 and the last in all combinations, among finite elements."""
    last = dist.get_world_size() - 1
    tensor = normal(rank, 2000)
    if rank == 0:
        tensor[[0, 700]] = math.nan
        tensor[1] = math.inf
        tensor[2] = -math.inf
        tensor[3] = math.inf
    if rank == last:
        tensor[1999] = math.inf
        tensor[3] = -math.inf if last else math.inf
        tensor[4] = math.nan
    return tensor


@case
def nan_and_infinities() -> None:
    tensor = special(dist.get_rank())
    dist.all_reduce(tensor)
    expected = contributions(special).sum(0)
    assert torch.equal(tensor.isnan(), expected.isnan())
    assert torch.equal(tensor.isposinf(), expected.isposinf())
    assert torch.equal(tensor.isneginf(), expected.isneginf())
    finite = expected.isfinite()
    inputs = contributions(special)[:, finite]
    assert (tensor[finite].double() - inputs.sum(0)).abs().max().item() <= bound(inputs)


@case
def all_nan() -> None:
    tensor = torch.full((600,), math.nan)
    dist.all_reduce(tensor)
    assert tensor.isnan().all()


@case
def transposed_and_strided() -> None:
    matrix = normal(dist.get_rank(), 37, 53).t()
    dist.all_reduce(matrix)
    assert_sum(matrix, contributions(lambda rank: normal(rank, 37, 53).t()))
    whole = normal(dist.get_rank(), 1001)
    before = whole.clone()
    dist.all_reduce(whole[::3])
    assert_sum(whole[::3], contributions(lambda rank: normal(rank, 1001)[::3]))
    assert torch.equal(whole[1::3], before[1::3]), "elements outside the view changed"


@case
def many_at_once_and_out_of_order() -> None:
    sizes = [1, 5000, 0, 300, 70_000, 256, 33, 9000, 2, 128]
    tensors = [normal(dist.get_rank(), size) for size in sizes]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        assert work is not None
        assert work.wait()
        assert work.is_completed()
    for tensor, size in zip(tensors, sizes, strict=True):
        assert_sum(tensor, normals(size))


@case
def a_sum_that_nobody_waits_for_arrives_and_never_again() -> None:
    ranks = dist.get_world_size()
    sums = [torch.zeros(3, dtype=dtype) for dtype in (torch.bfloat16, torch.int32, torch.float32)]
    sums.append(torch.zeros(3, 2)[:, 0])
    for tensor in sums:
        shares = torch.ones(3 * ranks, dtype=tensor.dtype)
        dist.reduce_scatter_tensor(tensor, shares, async_op=True)
    deadline = time.monotonic() + 20
    while any(tensor.tolist() != [ranks] * 3 for tensor in sums):
        assert time.monotonic() < deadline, sums
    for tensor in sums:
        tensor.fill_(7)
    dist.all_reduce(torch.ones(3))
    assert [tensor.tolist() for tensor in sums] == [[7] * 3] * 4


@case
def a_sum_whose_wait_is_interrupted_arrives_all_the_same() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    ranks, store = dist.get_world_size(), dist.distributed_c10d._get_default_store()
    tensor = torch.ones(3, dtype=torch.bfloat16)
    if dist.get_rank() == 0 and ranks > 1:
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        with pytest.raises(KeyboardInterrupt):
            dist.all_reduce(tensor)
        signal.signal(signal.SIGALRM, before)
        store.set("interrupted", "")
    else:
        if ranks > 1:
            store.wait(["interrupted"])
        dist.all_reduce(tensor)
    deadline = time.monotonic() + 20
    while tensor.tolist() != [ranks] * 3:
        assert time.monotonic() < deadline, tensor


@case
def the_same_tensor_twice_in_flight_is_summed_one_after_the_other() -> None:
    ranks = dist.get_world_size()
    whole = torch.arange(40_000.0) - 20_000
    for part in (slice(None), slice(None, None, 2), slice(100, 30_000)):
        expected = whole.clone()
        expected[part] *= ranks * ranks
        works = [dist.all_reduce(whole[part], async_op=True) for _ in range(2)]
        for work in works:
            assert work is not None
            work.wait()
        assert torch.allclose(whole, expected, rtol=1e-6, atol=0.01)


@case
def tensors_of_inference_mode() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total, mean = ranks * (ranks + 1), ranks + 1

    def check(make: Callable[[], torch.Tensor], op: dist.ReduceOp.RedOpType, expected: float) -> None:
        tensor = make()
        dist.all_reduce(tensor, op=op)
        assert tensor.tolist() == [expected] * 5
        tensor = make()
        work = dist.all_reduce(tensor, op=op, async_op=True)
        assert work is not None
        future = work.get_future().then(lambda done: done.value()[0].tolist())
        work.wait()
        assert tensor.tolist() == future.wait() == [expected] * 5

    types = (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.int16,
        torch.int64,
    )
    for dtype in types:
        for op, expected in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, mean)):

            @torch.inference_mode()
            def make(dtype: torch.dtype = dtype) -> torch.Tensor:
                return torch.full((2, 5), 2 * (rank + 1), dtype=dtype)[1]

            check(make, op, expected)
            with torch.inference_mode():
                check(make, op, expected)
                outside = torch.empty(5, dtype=dtype)
            if dtype != torch.float64:  # gloo does these, and refuses to write to such a tensor
                inputs = [make() for _ in range(ranks)]
                dist.reduce_scatter(outside, inputs, op=op)
                assert outside.tolist() == [expected] * 5


@case
def an_expanded_tensor_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="its elements share memory"):
        dist.all_reduce(torch.ones(1).expand(5))


@case
def integers_are_exact_and_wrap_around() -> None:
    ranks, before = dist.get_world_size(), through_switch()
    types = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
    for dtype in types:
        limits = torch.iinfo(dtype)
        generator = torch.Generator().manual_seed(5)
        shares = torch.randint(limits.min, limits.max, (ranks, 4000), generator=generator).to(dtype)
        shares[:, 0], shares[:, 1] = limits.min, limits.max
        tensor = shares[dist.get_rank()].clone()
        dist.all_reduce(tensor)
        assert torch.equal(tensor, shares.sum(0, dtype=torch.int64).to(dtype)), dtype
    many = torch.full((5000,), 1000 * dist.get_rank(), dtype=torch.int16)  # gloo takes none
    dist.all_reduce(many)
    assert many.tolist() == [500 * ranks * (ranks - 1)] * 5000
    assert through_switch() == before + len(types) + 1


@case
def means_of_integers_are_sums_divided_towards_zero() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group: Any = dist.group.WORLD
    generator = torch.Generator().manual_seed(6)
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        limits = torch.iinfo(dtype)
        for shape in ((), (0,), (7,), (4000,), (5000,), (3, 50)):
            if dtype == torch.int16 and shape == (5000,):
                continue  # through the switch too, as gloo takes none
            shares = torch.randint(limits.min, limits.max, (ranks, *shape), generator=generator).to(dtype)
            shares.view(-1)[:1] = limits.min
            mean = shares.sum(0, dtype=torch.int64).to(dtype).div(ranks, rounding_mode="trunc")
            tensor = shares[rank].clone()
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
            assert torch.equal(tensor, mean), (dtype, shape)
            tensor = shares[rank].clone()
            work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
            assert work is not None
            assert torch.equal(work.get_future().wait()[0], mean)
            tensor = shares[rank].clone()
            dist.reduce(tensor, ranks - 1, op=dist.ReduceOp.AVG)
            if rank == ranks - 1:
                assert torch.equal(tensor, mean)
            elif shares[rank].numel() <= 4096:  # gloo changes the tensors of the other ranks
                assert torch.equal(tensor, shares[rank])
            if shape[-1:] in ((4000,), (5000,)) and ranks in (2, 4):
                part = torch.empty(shares[rank].numel() // ranks, dtype=dtype)
                dist.reduce_scatter(part, list(shares[rank].chunk(ranks)), op=dist.ReduceOp.AVG)
                assert torch.equal(part, mean.chunk(ranks)[rank])
                part.zero_()
                group.reduce_scatter_single(part, shares[rank], dist.ReduceOp.AVG).wait()
                assert torch.equal(part, mean.chunk(ranks)[rank])
            with _coalescing_manager():
                several = [shares[rank].clone() for _ in range(2)]
                for one in several:
                    dist.all_reduce(one, op=dist.ReduceOp.AVG)
            assert all(torch.equal(one, mean) for one in several)
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(3, dtype=torch.bool), op=dist.ReduceOp.AVG)


@case
def half_floats_are_summed_in_float32_and_rounded_once() -> None:
    before = through_switch()
    for dtype in (torch.float16, torch.bfloat16):
        for shape in ((3000,), (), (0,)):
            tensor = normal(dist.get_rank(), *shape).to(dtype)
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            assert work.get_future().wait()[0] is tensor
            inputs = normals(*shape, dtype=dtype)
            rounding = torch.finfo(dtype).eps / 2 * inputs.sum(0).abs()
            assert ((tensor.double() - inputs.sum(0)).abs() <= bound(inputs) + rounding).all()
    assert through_switch() == before + 6


@case
def large_tensors_of_half_floats_have_lanes_of_16_bits() -> None:
    group = dist.group.WORLD
    assert isinstance(group, inagg.ProcessGroup)
    options, alone = group.options, dist.get_world_size() == 1
    for dtype in (torch.float16, torch.bfloat16):
        inputs = normals(9000, dtype=dtype)
        rounding = torch.finfo(dtype).eps / 2 * inputs.sum(0).abs()
        results = []
        for lane_bits in (None, 16, 32):
            group.options = options.model_copy(update={"half_lane_bits": lane_bits})
            tensor = normal(dist.get_rank(), 9000).to(dtype)
            dist.all_reduce(tensor)
            assert (
                (tensor.double() - inputs.sum(0)).abs() <= bound(inputs, lane_bits or 16) + rounding
            ).all()
            results.append(tensor)
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2]) is alone  # nothing is rounded there
        group.options = options
        ranks, rank = dist.get_world_size(), dist.get_rank()
        inputs = normals(5000 * ranks, dtype=dtype)
        part, whole = torch.empty(5000, dtype=dtype), normal(rank, 5000 * ranks).to(dtype)
        dist.reduce_scatter(part, list(whole.chunk(ranks)))
        dist.reduce(whole, dst=0)
        wanted = inputs.sum(0)
        off = bound(inputs, 16) + torch.finfo(dtype).eps / 2 * wanted.abs()
        mine = slice(5000 * rank, 5000 * (rank + 1))
        assert ((part.double() - wanted[mine]).abs() <= off[mine]).all()
        assert rank != 0 or ((whole.double() - wanted).abs() <= off).all()
    assert inagg.stats()["half_lane_bits"] == {"float16": 16, "bfloat16": 16}


@case
def premultiplied_sums() -> None:
    factor = 1 / (dist.get_rank() + 2)
    tensor = normal(dist.get_rank(), 700)
    dist.all_reduce(tensor, op=_make_nccl_premul_sum(factor))
    assert_sum(tensor, contributions(lambda rank: normal(rank, 700) / (rank + 2)))
    strided = normal(dist.get_rank(), 700, 2)[:, 1]
    dist.all_reduce(strided, op=_make_nccl_premul_sum(torch.tensor([0.5])))
    assert_sum(strided, contributions(lambda rank: normal(rank, 700, 2)[:, 1] / 2))


@case
def what_the_switch_cannot_do_goes_to_the_inner_group() -> None:
    rank, ranks, before = dist.get_rank(), dist.get_world_size(), through_switch()
    inner = inagg.stats()["inner_reductions"]
    doubles = torch.full((3,), 1 + 2.0**-50, dtype=torch.float64)
    dist.all_reduce(doubles)
    assert doubles.tolist() == [ranks * (1 + 2.0**-50)] * 3
    mean = torch.full((3,), float(rank), dtype=torch.float64)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    assert torch.allclose(mean, torch.full_like(mean, (ranks - 1) / 2))
    greatest, least = torch.tensor([float(rank)]), torch.tensor([rank])
    dist.all_reduce(greatest, op=dist.ReduceOp.MAX)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    assert (greatest.item(), least.item()) == (ranks - 1, 0)
    many = torch.full((5000,), 2**40 + rank)
    dist.all_reduce(many)
    assert many.tolist() == [ranks * 2**40 + ranks * (ranks - 1) // 2] * 5000
    bits = torch.tensor([1 << rank])
    dist.all_reduce(bits, op=dist.ReduceOp.BOR)
    assert bits.item() == (1 << ranks) - 1
    sparse = torch.sparse_coo_tensor(torch.tensor([[rank, 7]]), [1.0, 2.0], (8,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist()[7] == 2.0 * ranks
    assert through_switch() == before
    assert inagg.stats()["inner_reductions"] == inner + 7


@case
def complex_numbers_are_summed_as_pairs() -> None:
    before = through_switch()
    tensor = torch.complex(normal(dist.get_rank(), 50), torch.ones(50))
    dist.all_reduce(tensor)
    assert_sum(tensor.real, contributions(lambda rank: normal(rank, 50)))
    assert tensor.imag.tolist() == [float(dist.get_world_size())] * 50
    assert through_switch() == before + 1


@case
def reduce_gives_the_sum_to_the_root_and_leaves_the_others_alone() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for root in range(ranks):
        for mine in (normal(rank, 901), (normal(rank, 901) * 1000).to(torch.int32)):
            tensor = mine.clone()
            dist.reduce(tensor, root)
            if rank != root:
                assert torch.equal(tensor, mine)
            elif mine.is_floating_point():
                inputs = contributions(lambda other: normal(other, 901))
                assert (tensor.double() - inputs.sum(0)).abs().max().item() <= bound(inputs)
            else:
                integers = torch.stack(
                    [(normal(other, 901) * 1000).to(torch.int32) for other in range(ranks)]
                )
                assert torch.equal(tensor, integers.sum(0, dtype=torch.int32))


@case
def a_root_that_is_no_rank_is_refused() -> None:
    for root in (-1, dist.get_world_size()):
        with pytest.raises((RuntimeError, ValueError), match="root"):
            dist.reduce(torch.ones(3), root)


@case
def contributions_that_hold_no_result_are_left_as_they_were() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.float64):  # through the switch; through gloo, which only sums
        tensor = torch.nn.Parameter(torch.full((5,), float(rank + 1), dtype=dtype))
        dist.reduce(tensor, 0, op=dist.ReduceOp.AVG)
        assert tensor.tolist() == [(ranks + 1) / 2 if rank == 0 else rank + 1] * 5
    part = torch.empty(3)
    dist.reduce_scatter_tensor(
        part, torch.ones(1).expand(3 * ranks)
    )  # read only: its elements may share memory
    assert part.tolist() == [ranks] * 3
    with pytest.raises(ConfigurationError, match="cannot hold a sum"):
        dist.reduce_scatter_tensor(torch.ones(1).expand(3), torch.ones(3 * ranks))


@case
def reduce_scatter_in_all_its_forms() -> None:
    rank, ranks, before = dist.get_rank(), dist.get_world_size(), through_switch()
    inputs = contributions(lambda other: normal(other, ranks, 333))
    mine = normal(rank, ranks, 333)
    untouched = mine.clone()

    def check(output: torch.Tensor, expected: torch.Tensor) -> None:
        assert (output.double() - expected).abs().max().item() <= bound(inputs)
        assert torch.equal(mine, untouched)

    output = torch.empty(333)
    dist.reduce_scatter_tensor(output, mine)
    check(output, inputs.sum(0)[rank])
    dist.reduce_scatter_tensor(output, mine, op=dist.ReduceOp.AVG)
    check(output, inputs.mean(0)[rank])
    dist.reduce_scatter(output, list(mine))
    check(output, inputs.sum(0)[rank])
    uneven = [mine[other, : 10 + other] for other in range(ranks)]
    part = torch.empty(10 + rank)
    dist.reduce_scatter(part, uneven)
    check(part, inputs.sum(0)[rank, : 10 + rank])
    outputs = [torch.empty(333), torch.empty(333)]
    with _coalescing_manager():
        for one in outputs:
            dist.reduce_scatter_tensor(one, mine)
    for one in outputs:
        check(one, inputs.sum(0)[rank])
    in_place = mine.clone()
    dist.reduce_scatter_tensor(in_place[rank], in_place)
    assert (in_place[rank].double() - inputs.sum(0)[rank]).abs().max().item() <= bound(inputs)
    assert through_switch() == before + 6
    doubles = torch.empty(333, dtype=torch.float64)
    dist.reduce_scatter_tensor(doubles, mine.double().view(-1), op=dist.ReduceOp.AVG)
    check(doubles, inputs.mean(0)[rank])
    dist.reduce_scatter(doubles, [part.double() for part in mine], op=dist.ReduceOp.AVG)
    check(doubles, inputs.mean(0)[rank])
    with pytest.raises((RuntimeError, ValueError)):
        dist.reduce_scatter_tensor(torch.empty(332), mine)


@case
def float8_is_refused() -> None:
    for operation in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        with pytest.raises(ConfigurationError, match=r"nothing sums torch\.float8_e4m3fn on the CPU"):
            dist.all_reduce(torch.ones(3).to(torch.float8_e4m3fn), op=operation)


@case
def options_that_are_assigned_apply_to_later_sums() -> None:
    group = dist.group.WORLD
    assert isinstance(group, inagg.ProcessGroup)
    options = group.options
    results = []
    for lane_bits in (32, 8, 32):
        group.options = options.model_copy(update={"lane_bits": lane_bits})
        tensor = normal(dist.get_rank(), 700)
        dist.all_reduce(tensor)
        results.append(tensor)
    group.options = options
    assert torch.equal(results[0], results[2])
    alone = dist.get_world_size() == 1  # nothing is rounded there
    assert torch.equal(results[0], results[1]) is alone
