# SPDX-License-Identifier: Apache-2.0
"""One rank of test_cuda.py: collectives and training with tensors on a GPU that all ranks share; one JSON line a case.

Arguments: the file for the lines, the device ("cuda", or "cpu" to try this without a GPU), and for each rank who makes
lanes (`Options.device_sums`).
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket, _make_nccl_premul_sum
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import inagg
import inagg.hooks
from tests.hostlib.backend import collectives_cases, collectives_inner

CASES: dict[str, Callable[[torch.device], None]] = {}


def case(function: Callable[[torch.device], None]) -> Callable[[torch.device], None]:
    CASES[function.__name__] = function
    return function


def normal(*shape: int) -> torch.Tensor:
    """Random numbers of this rank, on the CPU."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(50 + dist.get_rank()))


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert torch.equal(found.cpu(), expected.cpu()), (found, expected)


def model_on(device: torch.device) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 300), nn.Tanh(), nn.Linear(300, 4)).to(device)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def by_the_cpu(group: inagg.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook that averages a bucket's gradients through the switch as CPU tensors."""
    buffer = bucket.buffer()
    copy = (buffer / dist.get_world_size()).cpu()
    group.sum_lanes(copy, lane_bits=32).wait()
    buffer.copy_(copy)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=[] if buffer.device.type == "cpu" else [buffer.device]
    )
    future.set_result(buffer)
    return future


@case
def sums_of_all_types_are_those_of_the_cpu(device: torch.device) -> None:
    before = inagg.stats()["switch_reductions"]
    cases = [
        (dtype, operation)
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
        for operation in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, _make_nccl_premul_sum(0.3))
    ]
    cases += [(dtype, dist.ReduceOp.SUM) for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64)]
    for dtype, operation in cases:
        here = (normal(4099 if dtype.is_floating_point else 1001, 2) * 50).to(dtype)[:, 1]  # strided
        there = here.to(device)
        dist.all_reduce(here, op=operation)
        dist.all_reduce(there, op=operation)
        assert_same(there, here)
    assert inagg.stats()["switch_reductions"] == before + 2 * len(cases)


@case
def a_reduce_scatter_leaves_its_input_alone(device: torch.device) -> None:
    whole = normal(2000)
    given = whole.to(device)
    part = torch.empty(1000, device=device)
    dist.reduce_scatter_tensor(part, given)
    assert_same(given, whole)
    dist.all_reduce(whole)
    assert_same(part, whole[1000 * dist.get_rank() :][:1000])


@case
def other_collectives_go_to_the_inner_group(device: torch.device) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((4,), float(rank), device=device)
    dist.broadcast(tensor, ranks - 1)
    assert tensor.tolist() == [ranks - 1.0] * 4
    greatest = torch.tensor([rank], device=device)
    dist.all_reduce(greatest, op=dist.ReduceOp.MAX)
    assert greatest.item() == ranks - 1
    gathered = [torch.empty(1, device=device) for _ in range(ranks)]
    dist.all_gather(gathered, torch.tensor([float(rank)], device=device))
    assert torch.cat(gathered).tolist() == [float(other) for other in range(ranks)]
    doubles = torch.ones(3, dtype=torch.float64, device=device)
    dist.all_reduce(doubles)
    assert doubles.tolist() == [float(ranks)] * 3
    dist.barrier()


@case
def a_gather_sees_what_its_stream_was_given_and_the_stream_sees_the_result(device: torch.device) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cuda = device.type == "cuda"
    side = torch.cuda.Stream(device) if cuda else None
    after: list[torch.Tensor] = []
    with torch.cuda.stream(side):  # does nothing without a stream
        for number in range(4):
            mine, gathered = torch.zeros(100_000, device=device), torch.empty(ranks, 100_000, device=device)
            if cuda:
                torch.cuda._sleep(50_000_000)
            mine.fill_(float(rank + number))
            work = dist.all_gather_into_tensor(gathered, mine, async_op=True)
            del mine  # its memory must not be used again before it has been copied
            torch.full((100_000,), -1.0, device=device)
            assert work is not None
            work.wait()
            after.append(gathered + 1)
            del gathered, work
    if side is not None:
        side.synchronize()
    for number, found in enumerate(after):
        expected = torch.arange(ranks, dtype=torch.float32).add(number + 1).unsqueeze(1).expand(-1, 100_000)
        assert_same(found, expected)


@case
def synchronised_batch_norm_is_that_of_the_whole_batch(device: torch.device) -> None:
    if device.type == "cpu":
        return  # torch has it for accelerators only
    ranks = dist.get_world_size()
    alone = nn.BatchNorm1d(5).to(device)
    together = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(5)).to(device)
    batches = torch.randn(ranks, 6, 5, generator=torch.Generator().manual_seed(1)).to(device)
    alone(batches.flatten(0, 1)).square().mean().backward()
    together(batches[dist.get_rank()]).square().mean().backward()
    found, expected = together.state_dict(), alone.state_dict()
    for name in ("running_mean", "running_var"):
        assert torch.allclose(found[name], expected[name], atol=1e-6)
    assert together.weight.grad is not None
    assert alone.weight.grad is not None
    dist.all_reduce(together.weight.grad, op=dist.ReduceOp.AVG)
    assert torch.allclose(together.weight.grad, alone.weight.grad, atol=1e-6)


@case
def ddp_ends_in_the_weights_of_sums_on_the_cpu(device: torch.device) -> None:
    ends = []
    for hook in (None, by_the_cpu):
        model = DistributedDataParallel(model_on(device), bucket_cap_mb=0.01)
        if hook is not None:
            model.register_comm_hook(dist.group.WORLD, hook)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(2):
            optimiser.zero_grad()
            model(normal(6, 12).to(device) + step).square().mean().backward()
            optimiser.step()
        ends.append(flat(model))
    assert_same(ends[0], ends[1])


@case
def ddp_with_narrow_lanes_keeps_ranks_alike(device: torch.device) -> None:
    model = DistributedDataParallel(model_on(device), bucket_cap_mb=0.01)
    state = inagg.hooks.NarrowLanes(model, lane_bits=8)
    model.register_comm_hook(state, inagg.hooks.narrow_lanes)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        model(normal(6, 12).to(device)).square().mean().backward()
        optimiser.step()
    weights = flat(model).cpu()
    gathered = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, weights)
    assert all(torch.equal(weights, other) for other in gathered)
    assert all(left.device.type == device.type for left in state.residuals.snapshot().values())


@case
def an_infinity_on_one_rank_skips_the_step_on_all(device: torch.device) -> None:
    model = DistributedDataParallel(model_on(device))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    for step in range(2):
        before = flat(model)
        batch = normal(6, 12).to(device)
        if step == 1 and dist.get_rank() == dist.get_world_size() - 1:
            batch[0, 0] = float("inf")
        optimiser.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(batch).float().sum()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        assert torch.equal(before, flat(model)) == (step == 1)
    assert scaler.get_scale() == 512.0


@case
def fsdp2_trains_as_one_process_would(device: torch.device) -> None:
    torch.manual_seed(3)
    model = model_on(device)
    alone = model_on(device)
    fully_shard(model, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))
    batches = torch.randn(dist.get_world_size(), 6, 12, generator=torch.Generator().manual_seed(1)).to(device)
    for net, batch in ((model, batches[dist.get_rank()]), (alone, batches.flatten(0, 1))):
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            optimiser.zero_grad()
            net(batch).square().mean().backward()
            optimiser.step()
    found = torch.cat([weights.full_tensor().flatten() for weights in model.state_dict().values()])
    assert torch.allclose(found, flat(alone), rtol=0, atol=1e-5)


def on_default_device(run: Callable[[], None]) -> Callable[[torch.device], None]:
    def inner(device: torch.device) -> None:
        with device:
            run()

    return inner


CASES |= {
    run.__name__: on_default_device(run)
    for run in collectives_cases.CASES
    if run.__module__ == collectives_inner.__name__
}


def main() -> None:
    device = torch.device(sys.argv[2])
    inagg.Options.stage_cpu = device.type == "cpu"
    os.environ["INAGG_DEVICE_SUMS"] = sys.argv[3 + int(os.environ["RANK"])]  # ranks may differ in it
    if device.type == "cuda":
        device = torch.device("cuda", 0)
        torch.cuda.set_device(device)
    dist.init_process_group("inagg")
    with Path(sys.argv[1]).open("a") as results:
        for name, run in CASES.items():
            try:
                run(device)
                problem = None
            except Exception:
                problem = traceback.format_exc()
            results.write(json.dumps({"case": name, "problem": problem}) + "\n")
            results.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
