# SPDX-License-Identifier: Apache-2.0
"""Cases of test_collectives.py: callbacks, waits, types and kinds of tensors that few programs have."""

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from inagg.errors import ConfigurationError, WaitTimeoutError
from tests.hostlib.backend.collectives_cases import case


@case
def callbacks_of_gloos_futures_may_wait_for_other_collectives() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def twice(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        (total,) = done.value()
        dist.all_reduce(total)
        gathered = torch.empty(3 * ranks, dtype=torch.float64)
        dist.all_gather_into_tensor(gathered, total)
        return gathered

    with torch.no_grad():
        work = dist.all_reduce(torch.full((3,), rank + 1.0, dtype=torch.float64), async_op=True)
        assert work is not None
        chain = work.get_future().then(lambda done: (twice(done), torch.is_grad_enabled()))
    total, with_gradients = chain.wait()
    assert total.tolist() == [ranks * ranks * (ranks + 1) / 2] * 3 * ranks
    assert not with_gradients
    failing = dist.broadcast(torch.ones(3), 0, async_op=True)
    assert failing is not None
    with pytest.raises(RuntimeError, match="of the program"):
        failing.get_future().then(lambda _: refuse()).wait()
    dist.barrier()


def refuse() -> None:
    raise ValueError("an error of the program")


def refused(tensor: torch.Tensor, group: dist.ProcessGroup) -> type[Exception] | None:
    """The kind of error that a sum of the tensor ends in."""
    try:
        dist.all_reduce(tensor, group=group)
    except Exception as error:
        return type(error)
    return None


@case
def tensors_that_are_not_in_memory() -> None:
    rank, ranks, world = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    assert world is not None
    gloo = dist.new_group(backend="gloo")
    total = ranks * (ranks + 1) / 2
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        mine = torch.full((4,), rank + 1.0, dtype=dtype)
        under_way = funcol.all_reduce(mine, "sum", world)  # waits when it is used
        dist.all_reduce(under_way)
        assert under_way.tolist() == [total * ranks] * 4
        again = funcol.all_reduce(mine, "sum", world)
        dist.reduce(again, 0)
        assert rank > 0 or again.tolist() == [total * ranks] * 4
        gathered = [torch.empty(4, dtype=dtype) for _ in range(ranks)]
        dist.all_gather(gathered, funcol.all_reduce(mine, "sum", world))
        assert torch.cat(gathered).eq(total).all()
        distributed = DTensor.from_local(mine, init_device_mesh("cpu", (ranks,)))
        assert refused(distributed, world) is refused(distributed, gloo) is not None
        with FakeTensorMode():  # gloo refuses its tensors up to torch 2.10
            fake = torch.ones(3, dtype=dtype)
            assert refused(fake, world) is refused(fake, gloo)
    dist.destroy_process_group(gloo)
    freed = torch.ones(300)
    freed.untyped_storage().resize_(0)
    if ranks > 1:  # a rank alone has nothing to do
        with pytest.raises(ConfigurationError, match="without memory"):
            dist.all_reduce(freed)
    dist.barrier()


@case
def autograd_does_not_see_results_written() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for operation in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            weight = torch.ones(5, dtype=dtype, requires_grad=True)
            loss = (weight * weight).sum()
            with torch.no_grad():
                dist.all_reduce(weight, op=operation)
            loss.backward()


@case
def types_that_gloo_does_not_know() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.int16, torch.complex64):
        tensor = torch.full((3,), rank + 1, dtype=dtype)
        dist.broadcast(tensor, ranks - 1)
        assert tensor.tolist() == [ranks] * 3
        gathered = [torch.empty(3, dtype=dtype) for _ in range(ranks)]
        dist.all_gather(gathered, torch.full((3,), rank + 1, dtype=dtype))
        assert torch.stack(gathered)[:, 0].tolist() == list(range(1, ranks + 1))
    with pytest.raises(ConfigurationError, match=r"nothing combines elements of torch\.int16"):
        dist.all_reduce(torch.ones(3, dtype=torch.int16), op=dist.ReduceOp.MAX)
    with pytest.raises(ConfigurationError, match=r"nothing combines elements of torch\.float32"):
        dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND)
    dist.barrier()


@case
def works_of_gloo_end_without_a_wait() -> None:
    ranks = dist.get_world_size()
    group: Any = dist.group.WORLD
    works = [
        group.reduce_scatter([torch.empty(3).double()], [[torch.ones(3).double()] * ranks]),
        group._reduce_scatter_base(torch.empty(3).double(), torch.ones(3 * ranks).double()),
        group.reduce([torch.ones(3).double()]),
        group.broadcast([torch.ones(3)]),
    ]
    for work in works:
        end = time.monotonic() + 20.0
        while not work.is_completed():
            assert time.monotonic() < end
            time.sleep(0.001)
        assert work.is_success()
        assert work.exception() is None
    assert len(group.reduce([torch.ones(3)]).result()) == 1


@case
def a_wait_for_gloo_may_time_out() -> None:
    if dist.get_world_size() == 1:
        return
    group = dist.new_group()
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(3).double(), group=group, async_op=True)
        assert work is not None
        with pytest.raises(WaitTimeoutError, match=r"not done after 0\.05 s"):
            work.wait(timedelta(milliseconds=50))
    dist.barrier()
    if dist.get_rank() == 0:
        work.wait()
    else:
        dist.all_reduce(torch.ones(3).double(), group=group)
    dist.destroy_process_group(group)
