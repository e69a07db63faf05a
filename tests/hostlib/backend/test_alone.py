# SPDX-License-Identifier: Apache-2.0
"""Groups of one rank need no controller, no job and no thread. Their sums are the rank's own tensors."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore, _make_nccl_premul_sum

import inagg
from inagg.errors import ConfigurationError, JobError
from inagg.groups import inagg_group

BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
SPECIAL = [1.5, float("nan"), float("inf"), float("-inf"), -0.0, 1e-38, 3e38]


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A world of one rank, without a controller."""
    monkeypatch.delenv("INAGG_CONTROLLER", raising=False)
    dist.init_process_group("inagg", store=HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def count(what: str) -> int:
    return len(list(Path("/proc/self", what).iterdir()))


def threads() -> int:
    return count("task")


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    kind = BITS.get(one.dtype, one.dtype)
    return torch.equal(one.view(kind), other.view(kind))


def test_many_groups_start_no_thread_and_open_no_descriptor() -> None:
    before = threads(), count("fd")
    groups = [dist.new_group([0]) for _ in range(32)]
    for group in groups:
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [1.0] * 10
    assert threads() <= before[0]  # a thread of an earlier test may have ended
    assert count("fd") == before[1]


@pytest.mark.parametrize("lane_bits", [32, 16, 8])
@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("op", [dist.ReduceOp.SUM, dist.ReduceOp.AVG])
def test_a_sum_keeps_every_bit(lane_bits: int, dtype: torch.dtype, op: dist.ReduceOp.RedOpType) -> None:
    group = dist.new_group(backend="inagg", pg_options=inagg.Options(lane_bits=lane_bits))
    tensor = torch.cat([torch.tensor(SPECIAL), torch.randn(1000)]).to(dtype)
    expected = tensor.clone()
    dist.all_reduce(tensor, op, group=group)
    assert same_bits(tensor, expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integers_keep_their_values(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    tensor = torch.tensor([limits.min, limits.max, 1], dtype=dtype)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [limits.min, limits.max, 1]


def test_a_factor_multiplies_the_contribution() -> None:
    tensor = torch.tensor([1.0, -3.0], dtype=torch.bfloat16)
    dist.all_reduce(tensor, _make_nccl_premul_sum(0.5))
    assert tensor.tolist() == [0.5, -1.5]


def test_reductions_with_other_outputs_leave_their_inputs_alone() -> None:
    tensor, output = torch.arange(6.0), torch.empty(2, 3)
    dist.reduce(tensor, 0)
    inagg_group(None)._reduce_scatter_base(output, tensor).wait()
    assert output.flatten().tolist() == tensor.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    dist.reduce_scatter(output, [tensor.view(2, 3) * 2])
    assert output.flatten().tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    columns = torch.zeros(6, 2)
    inagg_group(None)._reduce_scatter_base(columns[:, 1], tensor).wait()
    assert columns[:, 1].tolist() == tensor.tolist()
    assert not columns[:, 0].any()


def test_an_expanded_tensor_is_refused_as_in_other_groups() -> None:
    with pytest.raises(ConfigurationError, match="its elements share memory"):
        dist.all_reduce(torch.zeros(1).expand(4))


def test_lanes_of_one_call_leave_no_residual() -> None:
    tensor, residual = torch.randn(100), torch.ones(100)
    expected = tensor.clone()
    inagg_group(None).sum_lanes(tensor, lane_bits=8, residual=residual).wait()
    assert same_bits(tensor, expected)
    assert not residual.any()
    with pytest.raises(ConfigurationError, match="contiguous float32"):
        inagg_group(None).sum_lanes(tensor.double(), lane_bits=8)


def test_works_and_futures_are_done_at_once_and_callbacks_run() -> None:
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    assert work.is_completed()
    assert work.is_success()
    doubled = work.get_future().then(lambda future: future.value()[0] * 2).wait()
    assert doubled.tolist() == [2.0] * 3


def test_statistics_and_their_explanation_say_that_nothing_is_sent() -> None:
    with inagg.stats() as figures:
        dist.all_reduce(torch.ones(1000))
        dist.all_reduce(torch.ones(3, dtype=torch.float64))
    assert (figures["path"], figures["aggregation"]) == ("local", "local")
    assert (figures["switch_reductions"], figures["inner_reductions"]) == (1, 1)
    assert figures["calls"]["all_reduce"]["ended_bytes"] == 4000 + 24
    assert str(inagg.explain()).startswith("this group has one rank")


def test_the_store_is_not_needed_because_its_process_may_have_ended() -> None:
    store = TCPStore("127.0.0.1", 0, 1, True)
    gone = TCPStore("127.0.0.1", store.port, 1, False)
    del store
    group = inagg.ProcessGroup.create(gone, 0, 1)
    tensor = torch.ones(3)
    group.allreduce([tensor]).wait()
    group.barrier().wait()
    group.get_group_store().set("key", "value")
    group.shutdown()


def test_other_collectives_get_threads_when_they_are_first_called() -> None:
    before = threads()
    group = dist.new_group()
    gathered = [torch.empty(2)]
    dist.all_gather(gathered, torch.tensor([1.0, 2.0]), group=group)
    objects: list[object] = [None]
    dist.all_gather_object(objects, "word", group=group)
    dist.barrier(group)
    assert gathered[0].tolist() == [1.0, 2.0]
    assert objects == ["word"]
    assert threads() > before
    dist.destroy_process_group(group)
    assert threads() == before


@pytest.mark.parametrize(
    "call", [dist.all_reduce, lambda tensor, group: dist.broadcast(tensor, 0, group=group)]
)
@pytest.mark.parametrize(
    ("end", "reason"), [("shutdown", "has been destroyed"), ("abort", "aborted the group")]
)
def test_an_ended_group_does_no_collective(call: Callable[..., object], end: str, reason: str) -> None:
    group = inagg_group(dist.new_group())
    getattr(group, end)()
    before = threads()
    with pytest.raises(JobError, match=reason):
        call(torch.ones(3), group=group)
    assert threads() == before


def test_a_forked_child_is_not_a_member() -> None:
    if (child := os.fork()) == 0:
        try:
            dist.all_reduce(torch.ones(3))
        except JobError as error:
            os._exit(0 if "forked" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_calls_from_many_threads_make_one_inner_group() -> None:
    group = inagg_group(dist.new_group())
    with ThreadPoolExecutor(8) as callers:
        assert len(set(callers.map(lambda _: id(group.inner), range(8)))) == 1


def test_a_program_that_ends_without_destroying_its_groups_ends_well(tmp_path: Path) -> None:
    program = """
        import torch, torch.distributed as dist
        dist.init_process_group("inagg", store=dist.HashStore(), rank=0, world_size=1)
        groups = [dist.new_group([0]) for _ in range(4)]
        dist.all_reduce(torch.ones(3), group=groups[0])
        dist.barrier(groups[1])
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (0, "")
