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
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import inagg
from inagg.errors import ConfigurationError

CASES: list[Callable[[], None]] = []


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES.append(function)
    return function


def normal(rank: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randn(*shape, generator=generator) * scale


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


@case
def other_types_and_operations_go_to_the_inner_group() -> None:
    ranks = dist.get_world_size()
    before = inagg.stats()
    doubles = torch.ones(3, dtype=torch.float64)
    dist.all_reduce(doubles)
    integers = torch.full((3,), 2**40)
    dist.all_reduce(integers)
    greatest = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(greatest, op=dist.ReduceOp.MAX)
    assert doubles.tolist() == [ranks] * 3
    assert integers.tolist() == [ranks * 2**40] * 3
    assert greatest.item() == ranks - 1
    after = inagg.stats()
    assert after["all_reduces"] == before["all_reduces"]
    assert after["inner_all_reduces"] == before["inner_all_reduces"] + 3


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
    dist.barrier()
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
    assert after["all_reduces"] == before["all_reduces"] + 1
    assert after["collectives_completed"] == before["collectives_completed"] + 1
    assert after["bytes_sent"] >= before["bytes_sent"] + 4 * 1000


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
