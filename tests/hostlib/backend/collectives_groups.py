# SPDX-License-Identifier: Apache-2.0
"""Cases of test_collectives.py: groups, other collectives, errors, statistics."""

import importlib
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.nn.parallel import DistributedDataParallel

import inagg
from inagg.errors import CollectiveTimeoutError, ConfigurationError, InaggError, PeerLostError
from inagg.groups import inagg_group
from inagg.membership.session import Session
from inagg.sums.reduction import Reduction
from tests.hostlib.backend.collectives_cases import (
    assert_same_everywhere,
    assert_sum,
    bound,
    case,
    contributions,
    normal,
    normals,
)


@case
def a_sum_that_a_rank_never_calls_ends_in_a_timeout() -> None:
    dist.barrier()  # also the limit for making the group
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
        with pytest.raises(PeerLostError, match=r"lost rank 0.*: aborted the group"):
            dist.all_reduce(torch.ones(3), group=group)
    # Later collectives fail without the network, whether the switch or gloo would have done them.
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
    with _coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor, size in zip(tensors, (5, 700), strict=True):
        assert_sum(tensor, normals(size))
    gathered = [torch.empty(ranks * 3) for _ in range(2)]
    with _coalescing_manager():
        for one in gathered:
            dist.all_gather_into_tensor(one, torch.full((3,), float(rank)))
    for one in gathered:
        assert one[::3].tolist() == [float(other) for other in range(ranks)]


def of_many_kinds(rank: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Tensors that all_reduce_coalesced takes in one call: small, empty, large, strided, with specials and outliers."""
    if not dtype.is_floating_point:
        return [torch.arange(size, dtype=dtype) + rank for size in (20, 0, 300)]
    tensors = [normal(rank, size) for size in (5, 0, 256, 257, 1, 700, 5000, 6000)]
    tensors += [normal(rank, 40, 30).T, normal(rank, 50)[::5], torch.tensor(2.5), normal(rank, 100_000)]
    tensors = [tensor.to(dtype) for tensor in tensors]
    if dtype != torch.bfloat16:  # of which there are no complex numbers
        pairs = normal(rank, 20, 2).to(dtype)
        tensors.append(torch.view_as_complex(pairs).conj().imag)  # negated memory
    greatest = torch.finfo(dtype).max
    tensors[0][rank % 5] = torch.inf
    tensors[2][7] = greatest
    tensors[3][100] = greatest if rank == 0 else torch.nan
    tensors[6][rank] = -torch.inf
    return tensors


@case
def coalesced_sums_have_the_bits_of_separate_ones() -> None:
    ranks = dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
        for operation in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)[: 2 if dtype.is_floating_point else 1]:
            together, apart = (of_many_kinds(dist.get_rank(), dtype) for _ in range(2))
            before = inagg.stats().get("collectives_completed", 0)
            dist.all_reduce_coalesced(together, operation)
            sums = inagg.stats().get("collectives_completed", 0) - before
            for tensor in apart:
                dist.all_reduce(tensor, operation)
            for one, other in zip(together, apart, strict=True):
                assert torch.equal(one.isnan(), other.isnan())
                assert torch.equal(one.masked_fill(one.isnan(), 0), other.masked_fill(other.isnan(), 0))
            # Those of one width of lanes are one sum: halves of 5000 elements and more have 16 bits. The large one is
            # alone, and so is each tensor of integers.
            assert ranks == 1 or sums == (2 if dtype == torch.float32 else 3), sums


@case
def coalesced_sums_in_the_same_memory_and_after_one_another() -> None:
    """As over gloo, a tensor that is twice in a call has the sum, and later calls see it."""
    ranks = dist.get_world_size()
    whole = torch.ones(600)
    first, second, both = whole[:300], whole[300:], whole[200:400]
    dist.all_reduce_coalesced([first, first, second])
    assert whole.tolist() == [ranks] * 600
    works = [
        dist.all_reduce_coalesced([first, second], async_op=True),
        dist.all_reduce(both, async_op=True),
        dist.all_reduce_coalesced([both, torch.ones(3)], async_op=True),
    ]
    for work in works:
        work.wait()
    assert both.tolist() == [ranks**4] * 200
    assert whole[:200].tolist() == [ranks**2] * 200
    with pytest.raises(ConfigurationError, match="an expanded tensor cannot hold a sum"):
        dist.all_reduce_coalesced([torch.ones(3), torch.ones(1).expand(4)])
    freed = torch.ones(4000)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ConfigurationError, match="a tensor without memory"):
        dist.all_reduce_coalesced([torch.ones(3), freed])
    parameter = torch.ones(3, requires_grad=True)
    dist.all_reduce_coalesced([parameter, torch.ones(5)])
    assert parameter.tolist() == [ranks] * 3


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
    assert dist.get_backend() == "inagg"


@case
def a_monitored_barrier_names_the_rank_that_does_not_come_and_the_group_goes_on() -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    dist.monitored_barrier(timeout=60.0)
    group = dist.new_group(timeout=timedelta(seconds=2))
    dist.monitored_barrier(group, 60.0)
    if last > 0 and rank == 0:
        with pytest.raises(RuntimeError, match=rf"{last} failed to pass monitoredBarrier in 2000 ms"):
            dist.monitored_barrier(group, wait_all_ranks=True)
    elif rank != last:
        with pytest.raises(RuntimeError, match="received errors while waiting for send/recv from rank 0"):
            dist.monitored_barrier(group, wait_all_ranks=True)
    dist.barrier()  # of the world: in `group`, gloo has closed its connections
    dist.all_reduce(torch.ones(3), group=group)
    dist.destroy_process_group(group)


@case
def sixteen_bit_lanes_in_a_group_of_their_own() -> None:
    group = dist.new_group(backend="inagg", pg_options=inagg.Options(lane_bits=16))
    tensor = normal(dist.get_rank(), 5000)
    dist.all_reduce(tensor, group=group)
    assert_sum(tensor, contributions(lambda rank: normal(rank, 5000)), lane_bits=16)
    assert dist.get_world_size() == 1 or inagg.stats(group)["job"] != inagg.stats()["job"]
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
    # Each half makes its own group; torch gives both the same name.
    within, _ = dist.new_subgroups(len(mine), group)
    ones = torch.ones(3)
    dist.all_reduce(ones, group=within)
    assert ones.tolist() == [len(mine)] * 3
    dist.barrier()


@case
def a_group_is_made_again_under_its_name() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = next(half for half in (range(ranks // 2), range(ranks // 2, ranks)) if rank in half)

    def made() -> dist.ProcessGroup:
        # torch names it after its ranks.
        group: dist.ProcessGroup = dist.new_group(list(mine), use_local_synchronization=True)
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [float(sum(mine))] * 3
        gathered = [torch.empty(1) for _ in mine]
        dist.all_gather(gathered, torch.tensor([float(rank)]), group=group)
        assert torch.cat(gathered).tolist() == [float(other) for other in mine]
        return group

    for _ in range(3):
        dist.destroy_process_group(made())
    living = made()
    for _ in range(2):
        dist.destroy_process_group(made())  # beside the living one, under another name
    dist.destroy_process_group(living)


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

    assert dist.group.WORLD is not None
    through_switch = train(dist.group.WORLD)
    assert_same_everywhere(through_switch)
    over_gloo = train(dist.new_group(backend="gloo"))
    assert torch.allclose(through_switch, over_gloo, rtol=0, atol=1e-6)


@case
def statistics_count_what_happened() -> None:
    before = inagg.stats()
    dist.all_reduce(torch.ones(1000))
    after = inagg.stats()
    assert after["path"] == {"server": "server", "local": "local"}.get(after["aggregation"], "switch")
    assert after["switch_reductions"] == before["switch_reductions"] + 1
    assert after["inner_reductions"] == before["inner_reductions"]
    if dist.get_world_size() == 1:
        assert after["path"] == "local"
        return
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
        with pytest.raises(InaggError, match=rf"lost rank {last}.*: aborted the group"):
            dist.broadcast(torch.ones(3), last, group=group)
    dist.destroy_process_group(group)


@case
def a_rank_that_waits_for_any_other_hears_that_one_has_aborted_the_group() -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    group = dist.new_group()
    received = torch.zeros(3)
    if rank == 0 and last > 0:
        assert dist.recv(received, group=group) == last
        assert received.tolist() == [2.0] * 3
    elif rank == last > 0:
        dist.send(torch.full((3,), 2.0), 0, group=group)
    dist.barrier()
    if rank == last:
        group.abort()
    else:
        with pytest.raises(InaggError, match=rf"lost rank {last}.*: aborted the group"):
            dist.recv(received, group=group)
    dist.destroy_process_group(group)


@case
def a_message_or_a_rank_may_come_late() -> None:
    """Ranks besides the two wait in the broadcast, for twice as long."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    received = torch.zeros(1)
    for source in (last, None):
        if rank == last > 0:
            time.sleep(1.5)  # longer than gloo may take to connect
            dist.send(torch.ones(1), 0)
        elif rank == 0 < last:
            assert dist.recv(received, source) == last
    dist.broadcast(received, 0)


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
    alone = dist.get_world_size() == 1  # such a sum has ended when its call returns
    assert {kind: (call["count"], call["bytes"], call["ended"]) for kind, call in calls.items()} == {
        "all_reduce": (4, 12_036, 4 if alone else 3),
        "broadcast": (1, 40, 1),
    }
    ended = 12_036 if alone else 12_000
    assert calls["all_reduce"]["goodput"] == ended / calls["all_reduce"]["seconds"]
    assert alone or figures["window"] > 0


@case
def a_sum_that_another_thread_finishes_first_has_ended() -> None:
    session = inagg_group(None)._session
    if dist.get_world_size() == 1:
        return  # such a sum is done when its call returns
    assert isinstance(session, Session)
    submit = session.sums.submit

    def submit_and_finish(*arguments: Any, **settings: Any) -> Reduction:
        sum_under_way = submit(*arguments, **settings)
        assert sum_under_way.wait(None)
        return sum_under_way

    with mock.patch.object(session.sums, "submit", submit_and_finish), inagg.stats() as figures:
        dist.all_reduce(torch.ones(7))
        dist.all_reduce_coalesced([torch.ones(3), torch.ones(5)])
    (call,) = figures["calls"].values()
    assert (call["count"], call["ended"]) == (2, 2)


@case
def a_trace_of_the_profiler_has_the_sums() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        assert work is not None
        work.wait()
    ranges = {event.key for event in profile.key_averages()}
    assert {"inagg::all_reduce(SUM, float32[1000])", "inagg::wait"} <= ranges


@case
def lanes_of_a_call_of_its_own_and_what_they_leave_out() -> None:
    group = dist.group.WORLD
    assert isinstance(group, inagg.ProcessGroup)
    ranks = dist.get_world_size()
    inputs = contributions(lambda rank: normal(rank, 5000))
    tensor, left = normal(dist.get_rank(), 5000), torch.empty(5000)
    group.sum_lanes(tensor, lane_bits=8, residual=left).wait()
    if dist.get_world_size() > 1:
        assert inagg.stats()["narrowest_lane_bits"] == 8
    assert_sum(tensor, inputs, lane_bits=8)
    gathered = [torch.empty_like(left) for _ in range(ranks)]
    dist.all_gather(gathered, left)
    # Only the last rounding, to float32, is not in the residuals.
    whole = tensor.double() + torch.stack(gathered).double().sum(0)
    assert torch.allclose(whole, inputs.sum(0), rtol=1e-6, atol=1e-6)
    assert left.abs().max() < 0.5
    assert bool(left.any()) == (ranks > 1)  # a rank alone rounds nothing
    with pytest.raises(ConfigurationError, match="contiguous float32"):
        group.sum_lanes(tensor.double(), lane_bits=8)


@case
def bad_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"pg_options must be inagg\.Options"):
        dist.new_group(backend="inagg", pg_options="fast")


@case
def tensors_with_gaps_are_what_their_elements_are() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    one = torch.ones(1, dtype=torch.float64)
    total = float(sum(range(ranks)))
    calls: list[tuple[Callable[[torch.Tensor], object], float | None]] = [
        (dist.all_reduce, total),
        (lambda tensor: dist.all_reduce(tensor, op=dist.ReduceOp.AVG), total / ranks),
        (lambda tensor: dist.broadcast(tensor, ranks - 1), ranks - 1.0),
        (lambda tensor: dist.reduce(tensor, 0, dist.ReduceOp.MAX), ranks - 1.0 if rank == 0 else None),
        (lambda tensor: dist.scatter(tensor, [one.expand(6)] * ranks if rank == 0 else None), 1.0),
        (lambda tensor: dist.reduce_scatter(tensor, [one.expand(6)] * ranks), float(ranks)),
        (lambda tensor: dist.all_gather([tensor, *torch.empty(ranks - 1, 6).double()], tensor.clone()), 0.0),
        (lambda tensor: dist.all_reduce(tensor, op=dist.ReduceOp.MIN), 0.0),
    ]
    for number, (call, expected) in enumerate(calls):
        for rows in (1, 6):
            # The column of a matrix, and a matrix whose rows some ranks have as columns.
            matrix = torch.full((rows, 6), float(rank), dtype=torch.float64)
            column = torch.full((6, 2), float(rank), dtype=torch.float64)
            given = column[:, 0] if rows == 1 else matrix.t() if rank % 2 else matrix
            if rows == 6:
                given[0] += torch.arange(6)
                if call is not dist.all_reduce:
                    continue
            call(given)
            if rows == 6:
                assert given[0].tolist() == [total + ranks * place for place in range(6)]
                assert given[1:].eq(total).all()
                continue
            assert column[:, 1].tolist() == [float(rank)] * 6, "a gap has been changed"
            if expected is not None:
                assert given.tolist() == [expected] * 6, number
    gathered = [torch.zeros(6, dtype=torch.float64) for _ in range(ranks)] if rank == 0 else None
    dist.gather(one.expand(6), gathered)
    assert gathered is None or torch.cat(gathered).eq(1.0).all()
    if ranks > 1:
        if rank == 0:
            dist.send(torch.arange(12.0).view(6, 2)[:, 1], ranks - 1)
        if rank == ranks - 1:
            received = torch.zeros(6, 2)
            dist.recv(received[:, 0], 0)
            assert received.tolist() == [[place, 0.0] for place in (1.0, 3.0, 5.0, 7.0, 9.0, 11.0)]


@case
def expanded_tensors_cannot_hold_results() -> None:
    one, ranks = torch.ones(1, dtype=torch.float64), dist.get_world_size()
    for operation in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
        with pytest.raises(ConfigurationError, match="its elements share memory"):
            dist.all_reduce(one.expand(6), op=operation)
    with pytest.raises(ConfigurationError, match="its elements share memory"):
        dist.reduce_scatter(one.expand(6), [torch.ones(6, dtype=torch.float64)] * ranks)
    assert one.item() == 1.0


@case
def differentiable_collectives() -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    functions: Any = importlib.import_module("torch.distributed.nn.functional")
    shared = torch.full((2,), float(rank), requires_grad=True)
    sum(part.sum() for part in functions.gather(shared, 0)).backward()
    functions.reduce(shared, 0).sum().backward()
    functions.broadcast(shared.clone(), 0).sum().backward()
    sum(part.sum() for part in functions.all_gather(shared)).backward()
    functions.scatter([shared.clone() + other for other in range(ranks)], 0).sum().backward()
    functions.all_reduce(shared).sum().backward()
    assert shared.grad is not None
    assert shared.grad.isfinite().all()


@case
def a_destroyed_group_takes_its_connections_along_at_once() -> None:
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    dist.broadcast(torch.ones(3), 0, group=group)
    assert isinstance(group, inagg.ProcessGroup)
    inner = weakref.ref(group.inner)
    dist.destroy_process_group(group)
    del group
    assert inner() is None, "only the garbage collector would close its sockets"


@case
def ranks_share_the_store_of_their_group() -> None:
    assert dist.group.WORLD is not None
    store = dist.group.WORLD.get_group_store()
    store.add("present", 1)
    dist.barrier()
    assert store.add("present", 0) == dist.get_world_size()
