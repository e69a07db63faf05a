# SPDX-License-Identifier: Apache-2.0
"""Sums of CUDA tensors: streams, memory, futures. All ranks share one GPU."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from inagg.errors import ConfigurationError
from inagg.membership.session import Session
from inagg.sums.work import SwitchWork
from tests.hostlib.device import rank_sessions
from tests.hostlib.device.rank_sessions import bits, inputs, sessions, sums, wait_all

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

DEVICE = torch.device("cuda", 0)
SIZE = 50_000
LONG = 2_000_000_000  # cycles of a GPU's clock: about a second


@pytest.fixture(params=["host", "triton", "torch"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs with lanes made in every way."""
    plain = rank_sessions.PLAIN.model_copy(update={"device_sums": request.param})
    monkeypatch.setattr(rank_sessions, "PLAIN", plain)


def start(ranks: Sequence[Session], tensors: Sequence[torch.Tensor], **settings: Any) -> list[SwitchWork]:
    reductions = sums(ranks, tensors, [False] * len(ranks), **settings)
    return [SwitchWork([tensor], [reduction]) for tensor, reduction in zip(tensors, reductions, strict=True)]


def filled(*values: float) -> list[torch.Tensor]:
    """A tensor for each rank, made by the current stream."""
    return [torch.full((SIZE,), value, device=DEVICE) for value in values]


def warm_up(ranks: Sequence[Session]) -> None:
    """Do a few sums. The first ones may synchronise with the GPU, to allocate memory and load kernels."""
    for _ in range(5):
        for work in start(ranks, filled(*[1.0] * len(ranks))):
            work.wait()
    torch.cuda.synchronize()


@contextlib.contextmanager
def late_results(one: Session) -> Iterator[torch.cuda.Event]:
    """Delay the results of the block's sums by about a second. Yields an event after the delay."""
    stages = one.sums._devices._stages[DEVICE]
    event = torch.cuda.Event()
    with stages._stages[2].stream.current():
        torch.cuda._sleep(LONG)
        event.record()
    yield event
    torch.cuda.synchronize()


def test_a_sum_sees_what_its_stream_was_given_and_the_stream_sees_the_sum() -> None:
    with sessions(2) as ranks:
        streams = [torch.cuda.Stream(DEVICE) for _ in ranks]
        tensors = filled(0.0, 0.0)
        torch.cuda.synchronize()
        works = []
        for rank, stream, tensor in zip(ranks, streams, tensors, strict=True):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(LONG // 4)
                tensor.fill_(3.0)
                works += start([rank], [tensor])
        for stream, tensor, work in zip(streams, tensors, works, strict=True):
            with torch.cuda.stream(stream):
                work.wait()
                after = tensor + 1
            stream.synchronize()
            assert work.is_completed()
            assert bool((after == 7).all())


def test_a_busy_default_stream_neither_delays_a_sum_nor_is_waited_for() -> None:
    with sessions(2) as ranks:
        side = torch.cuda.Stream(DEVICE)
        with torch.cuda.stream(side):
            warm_up(ranks)
            tensors = filled(3.0, 4.0)
        torch.cuda.synchronize()
        torch.cuda._sleep(2 * LONG)
        busy = torch.cuda.Event()
        busy.record()
        with torch.cuda.stream(side):
            for work in start(ranks, tensors):
                work.wait()
        side.synchronize()
        assert not busy.query()
        torch.cuda.synchronize()
        assert all(bool((tensor == 7).all()) for tensor in tensors)


def test_no_call_of_torch_waits_for_the_device() -> None:
    with sessions(2) as ranks:
        warm_up(ranks)
        tensors = filled(3.0, 4.0)
        torch.cuda.set_sync_debug_mode("error")  # for all threads
        try:
            for work in start(ranks, tensors, average=True):
                work.wait()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert all(bool((tensor == 3.5).all()) for tensor in tensors)


def test_who_waits_gets_the_result_though_the_device_is_late() -> None:
    with sessions(1) as (one,):
        warm_up([one])
        (tensor,) = filled(3.0)
        with late_results(one) as unpacked:
            (work,) = start([one], [tensor])
            work.wait()
            assert not unpacked.query()
            assert not work.is_completed()
            after = tensor * 2  # on the default stream, which waits
            copy = after.clone()
        assert work.is_completed()
        assert bool((copy == 6).all())


def test_futures_and_their_callbacks_wait_for_the_device_on_their_own_streams() -> None:
    with sessions(1) as (one,):
        warm_up([one])
        for late in (False, True):
            (tensor,) = filled(3.0)
            with late_results(one) if late else contextlib.nullcontext():
                (work,) = start([one], [tensor], average=True)
                tripled = work.get_future().then(lambda done: done.value()[0] * 3)
                side = torch.cuda.Stream(DEVICE)
                with torch.cuda.stream(side):
                    after = tripled.wait() + 1
                side.synchronize()
            assert bool((after == 10).all())


def test_sums_of_the_same_tensor_follow_one_another_though_nobody_waits_between() -> None:
    with sessions(2) as ranks:
        warm_up(ranks)
        tensors = filled(1.0, 1.0)
        with late_results(ranks[0]), late_results(ranks[1]):
            start(ranks, tensors)
            for work in start(ranks, tensors):
                work.wait()
        assert all(bool((tensor == 4).all()) for tensor in tensors)


def test_memory_let_go_of_is_not_used_again_before_the_sum_is_through_with_it() -> None:
    with sessions(1) as (one,):
        warm_up([one])
        side = torch.cuda.Stream(DEVICE)
        with torch.cuda.stream(side):
            (tensor,) = filled(1.0)
            with late_results(one) as unpacked:
                (reduction,) = sums([one], [tensor], [False])
                wait_all([reduction])  # the host waits, no stream does
                del tensor, reduction
                fresh = [torch.full((SIZE,), 5.0, device=DEVICE) for _ in range(4)]
                assert not unpacked.query()
        assert all(bool((each == 5).all()) for each in fresh)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("lane_bits", [8, 16, 32])
def test_ranks_with_tensors_on_the_gpu_and_on_the_cpu_get_the_bits_of_the_cpu(
    lane_bits: int, rounding: str
) -> None:
    options = {"lane_bits": lane_bits, "rounding": rounding, "seed": 3}
    for elements in (0, 1, 255, 5000, 30_001, (1 << 20) + 1):
        given = inputs(2, elements, elements > 1)
        found = []
        for devices in (("cpu", "cpu"), ("cuda", "cpu"), ("cuda", "cuda")):
            with sessions(2) as ranks:  # new sessions: each sum of a job has a different seed
                tensors = [tensor.clone().to(device) for tensor, device in zip(given, devices, strict=True)]
                left = [torch.full_like(tensor, 7.0) for tensor in tensors]
                wait_all(sums(ranks, tensors, [False] * 2, options=options, residuals=left))
                torch.cuda.synchronize()
                found.append([bits(tensor.cpu()) for tensor in (*tensors, *left)])
        assert found[0] == found[1] == found[2]


def test_a_cuda_graph_cannot_have_a_sum() -> None:
    with sessions(1) as (one,):
        (tensor,) = filled(1.0)
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            tensor.add_(1)
            with pytest.raises(ConfigurationError, match="CUDA graph"):
                one.sums.submit(tensor, options=rank_sessions.PLAIN, call="")
