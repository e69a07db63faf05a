"""One rank of test_collectives.py: runs every case on backend "inagg" and writes one JSON line a case.

Started by the testbed with torch's env:// variables; argument: the file to append results to. Inputs are seeded by
rank, so each rank knows what the others sent and computes the expected sum itself, in float64.
"""

import json
import math
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import inagg
from inagg.errors import CollectiveTimeoutError, ConfigurationError, InaggError, PeerLostError

CASES: list[Callable[[], None]] = []


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES.append(function)
    return function


def normal(rank: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randn(shape, generator=generator) * scale


def contributions(make: Callable[[int], torch.Tensor]) -> torch.Tensor:
    """What all ranks contribute, stacked, in float64."""
    return torch.stack([make(rank) for rank in range(dist.get_world_size())]).double()


def bound(inputs: torch.Tensor, lane_bits: int = 32) -> float:
    """docs/protocol.md, 3.4, with the greatest exponent of the whole tensor: no block's is larger."""
    workers = inputs.shape[0]
    fraction = lane_bits - 1 - math.ceil(math.log2(workers)) if workers > 1 else lane_bits - 1
    finite = inputs[torch.isfinite(inputs)]
    greatest = finite.abs().max().item() if finite.numel() else 0.0
    quantisation = workers * 2.0 ** (math.frexp(greatest)[1] + 1 - fraction - 1)
    return quantisation + 2.0**-24 * (workers * greatest + quantisation) + 2.0**-150


def assert_sum(result: torch.Tensor, inputs: torch.Tensor, lane_bits: int = 32) -> None:
    error = (result.double() - inputs.sum(0)).abs().max().item() if result.numel() else 0.0
    assert error <= bound(inputs, lane_bits), f"error {error} above {bound(inputs, lane_bits)}"
    assert_same_everywhere(result)


def assert_same_everywhere(result: torch.Tensor) -> None:
    bits = result.detach().contiguous().view(torch.int32).clone()
    gathered = [torch.empty_like(bits) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, bits)
    assert all(torch.equal(bits, other) for other in gathered), "ranks differ"


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
    assert (tensor.double() - inputs.mean(0)).abs().max().item() <= bound(inputs)
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
        assert_sum(tensor, contributions(lambda rank, size=size: normal(rank, size)))


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
def an_expanded_tensor_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="its elements share memory"):
        dist.all_reduce(torch.ones(1).expand(5))


def through_switch() -> int:
    count: int = inagg.stats()["switch_reductions"]
    return count


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
def half_floats_are_summed_in_float32_and_rounded_once() -> None:
    before = through_switch()
    for dtype in (torch.float16, torch.bfloat16):
        for shape in ((3000,), (), (0,)):
            tensor = normal(dist.get_rank(), *shape).to(dtype)
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            assert work.get_future().wait()[0] is tensor
            inputs = contributions(lambda rank, shape=shape, dtype=dtype: normal(rank, *shape).to(dtype))
            rounding = torch.finfo(dtype).eps * inputs.sum(0).abs()
            assert ((tensor.double() - inputs.sum(0)).abs() <= bound(inputs) + rounding).all()
    assert through_switch() == before + 6


@case
def premultiplied_sums() -> None:
    factor = 1 / (dist.get_rank() + 2)
    tensor = normal(dist.get_rank(), 700)
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
    assert_sum(tensor, contributions(lambda rank: normal(rank, 700) / (rank + 2)))
    strided = normal(dist.get_rank(), 700, 2)[:, 1]
    dist.all_reduce(strided, op=dist._make_nccl_premul_sum(torch.tensor([0.5])))
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
    sparse = torch.sparse_coo_tensor([[rank, 7]], [1.0, 2.0], (8,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist()[7] == 2.0 * ranks
    assert through_switch() == before
    assert inagg.stats()["inner_reductions"] == inner + 7
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(3, dtype=torch.int32), op=dist.ReduceOp.AVG)


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
                total = sum((normal(other, 901) * 1000).to(torch.int32) for other in range(ranks))
                assert torch.equal(tensor, total)


@case
def a_root_that_is_no_rank_is_refused() -> None:
    for root in (-1, dist.get_world_size()):
        with pytest.raises((RuntimeError, ValueError), match="root"):
            dist.reduce(torch.ones(3), root)


@case
def contributions_that_hold_no_result_are_left_as_they_were() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.float64):  # through the switch; through gloo, which only sums
        tensor = torch.full((5,), float(rank + 1), dtype=dtype)
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
    with dist._coalescing_manager():
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
def a_sum_that_a_rank_never_calls_ends_in_a_timeout() -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if dist.get_rank() == 0 and dist.get_world_size() > 1:
        with pytest.raises(CollectiveTimeoutError, match="3 elements were not summed within the group's 1 s"):
            dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()
    dist.destroy_process_group(group)


@case
def an_aborted_group_fails_at_once_on_all_ranks() -> None:
    group = dist.new_group()
    if dist.get_rank() == 0:
        group.abort()
    else:
        with pytest.raises(PeerLostError, match=r"lost rank 0 \(aborted the group\)"):
            dist.all_reduce(torch.ones(3), group=group)
    # Later ones need no network to fail, and fail alike whether the switch or gloo were to do them.
    with pytest.raises(InaggError, match="aborted the group"):
        dist.broadcast(torch.ones(3), group=group, group_src=0)
    with pytest.raises(InaggError):
        dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()
    dist.destroy_process_group(group)


@case
def coalesced_all_reduces_and_gathers() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensors = [normal(rank, size) for size in (5, 700)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor, size in zip(tensors, (5, 700), strict=True):
        assert_sum(tensor, contributions(lambda other, size=size: normal(other, size)))
    gathered = [torch.empty(ranks * 3) for _ in range(2)]
    with dist._coalescing_manager():
        for one in gathered:
            dist.all_gather_into_tensor(one, torch.full((3,), float(rank)))
    for one in gathered:
        assert one[::3].tolist() == [float(other) for other in range(ranks)]


@case
def other_collectives() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((4,), float(rank))
    dist.broadcast(tensor, ranks - 1)
    assert tensor.tolist() == [ranks - 1.0] * 4
    gathered = [torch.empty(1) for _ in range(ranks)]
    dist.all_gather(gathered, torch.tensor([float(rank)]))
    assert torch.cat(gathered).tolist() == [float(other) for other in range(ranks)]
    objects: list[object] = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(ranks)]
    exchanged = torch.empty(ranks)
    dist.all_to_all_single(exchanged, torch.full((ranks,), float(rank)))
    assert exchanged.tolist() == [float(other) for other in range(ranks)]
    shares = [torch.full((2,), float(other)) for other in range(ranks)] if rank == 0 else None
    mine = torch.empty(2)
    dist.scatter(mine, shares)
    assert mine.tolist() == [rank, rank]
    whole = [torch.empty(2) for _ in range(ranks)] if rank == 0 else None
    dist.gather(mine, whole)
    assert whole is None or torch.stack(whole)[:, 0].tolist() == [float(other) for other in range(ranks)]
    if ranks > 1:
        received = torch.empty(1)
        there, back = (rank + 1) % ranks, (rank - 1) % ranks
        calls = [dist.P2POp(dist.isend, torch.tensor([float(rank)]), there)]
        calls.append(dist.P2POp(dist.irecv, received, back))
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        assert received.item() == back
    dist.barrier()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=60))
    assert dist.get_backend() == "inagg"


@case
def sixteen_bit_lanes_in_a_group_of_their_own() -> None:
    group = dist.new_group(backend="inagg", pg_options=inagg.Options(lane_bits=16))
    tensor = normal(dist.get_rank(), 5000)
    dist.all_reduce(tensor, group=group)
    assert_sum(tensor, contributions(lambda rank: normal(rank, 5000)), lane_bits=16)
    assert inagg.stats(group)["job"] != inagg.stats()["job"]
    dist.destroy_process_group(group)


@case
def sub_groups_sum_side_by_side() -> None:
    ranks = dist.get_world_size()
    halves = [list(range(ranks // 2)), list(range(ranks // 2, ranks))]
    groups = [dist.new_group(half) for half in halves if half]
    mine = next(half for half in halves if dist.get_rank() in half)
    group = groups[[half for half in halves if half].index(mine)]
    for _ in range(5):
        tensor = normal(dist.get_rank(), 10_000)
        dist.all_reduce(tensor, group=group)
        inputs = torch.stack([normal(rank, 10_000) for rank in mine]).double()
        assert (tensor.double() - inputs.sum(0)).abs().max().item() <= bound(inputs)
    dist.barrier()


@case
def ddp_trains_as_it_does_over_gloo() -> None:
    def train(group: dist.ProcessGroup) -> torch.Tensor:
        torch.manual_seed(7)
        layers = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3))
        model = DistributedDataParallel(layers, process_group=group)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(50 + dist.get_rank())
        for _ in range(4):
            optimiser.zero_grad()
            model(torch.randn(8, 20, generator=generator)).square().mean().backward()
            optimiser.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    through_switch = train(dist.group.WORLD)
    assert_same_everywhere(through_switch)
    over_gloo = train(dist.new_group(backend="gloo"))
    assert torch.allclose(through_switch, over_gloo, rtol=0, atol=1e-6)


@case
def statistics_count_what_happened() -> None:
    before = inagg.stats()
    dist.all_reduce(torch.ones(1000))
    after = inagg.stats()
    assert after["path"] == "switch"
    assert after["switch_reductions"] == before["switch_reductions"] + 1
    assert after["inner_reductions"] == before["inner_reductions"]
    assert after["collectives_completed"] == before["collectives_completed"] + 1
    assert after["bytes_sent"] >= before["bytes_sent"] + 4 * 1000


@case
def a_rank_that_waits_in_the_inner_group_hears_that_another_has_aborted_it() -> None:
    last = dist.get_world_size() - 1
    group = dist.new_group(backend="inagg")
    assert isinstance(group, inagg.ProcessGroup)
    if dist.get_rank() == last:
        group.abort()
    else:
        with pytest.raises(InaggError, match=rf"lost rank {last} \(aborted the group\)"):
            dist.broadcast(torch.ones(3), last, group=group)
    dist.destroy_process_group(group)


@case
def statistics_of_a_block_are_those_of_the_block() -> None:
    dist.all_reduce(torch.ones(7))
    with inagg.stats() as figures:
        for _ in range(3):
            dist.all_reduce(torch.ones(1000))
        dist.broadcast(torch.ones(10, dtype=torch.int32), 0)
        noticed_later = dist.all_reduce(torch.ones(9), async_op=True)
    assert noticed_later is not None
    noticed_later.wait()
    calls = figures["calls"]
    assert {
        kind: (call["count"], call["bytes"], call["ended"]) for kind, call in calls.items() if call["count"]
    } == {
        "all_reduce": (4, 12_036, 3),
        "broadcast": (1, 40, 1),
    }
    assert calls["all_reduce"]["goodput"] == 12_000 / calls["all_reduce"]["seconds"]
    assert figures["window"] > 0


@case
def a_trace_of_the_profiler_has_the_sums() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        assert work is not None
        work.get_future().wait()
    assert "inagg::all_reduce(SUM, float32[1000])" in {event.key for event in profile.key_averages()}


@case
def lanes_of_a_call_of_its_own_and_what_they_leave_out() -> None:
    group = dist.group.WORLD
    assert isinstance(group, inagg.ProcessGroup)
    ranks = dist.get_world_size()
    inputs = contributions(lambda rank: normal(rank, 5000))
    tensor, left = normal(dist.get_rank(), 5000), torch.empty(5000)
    group.sum_lanes(tensor, lane_bits=8, residual=left).wait()
    assert_sum(tensor, inputs, lane_bits=8)
    gathered = [torch.empty_like(left) for _ in range(ranks)]
    dist.all_gather(gathered, left)
    # Only the last rounding, to float32, is not in the residuals.
    whole = tensor.double() + torch.stack(gathered).double().sum(0)
    assert torch.allclose(whole, inputs.sum(0), rtol=1e-6, atol=1e-6)
    assert 0 < left.abs().max() < 0.5
    with pytest.raises(ConfigurationError, match="contiguous float32"):
        group.sum_lanes(tensor.double(), lane_bits=8)


@case
def bad_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"pg_options must be inagg\.Options"):
        dist.new_group(backend="inagg", pg_options="fast")


def main() -> None:
    dist.init_process_group("inagg")
    with Path(sys.argv[1]).open("a") as results:
        for run in CASES:
            start = time.monotonic()
            try:
                run()
                problem = None
            except Exception:
                problem = traceback.format_exc()
            row = {"case": run.__name__, "problem": problem, "seconds": time.monotonic() - start}
            results.write(json.dumps(row) + "\n")
            results.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
