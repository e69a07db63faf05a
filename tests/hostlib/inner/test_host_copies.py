# SPDX-License-Identifier: Apache-2.0
"""Collectives through host copies, between two gloo groups in this process. CPU tensors serve as device tensors; a test
decides when the device reaches a copy."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store

from inagg.inner import copied_work, host_copies
from inagg.inner.copied_work import CopiedWork
from inagg.inner.host_copies import HostCopies
from tests.waiting import wait_until

PAIR = (0, 1)


class Device:
    """Streams and events of a device that is late while `reached` is not set, and may fail."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.reached.set()
        self.problem: Exception | None = None
        self.held_back: list[threading.Thread] = []

    def current(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def record(self) -> "Device":
        return self

    def keep(self, _tensor: torch.Tensor) -> None: ...

    def synchronize(self) -> None:
        assert self.reached.wait(20.0)
        if self.problem is not None:
            raise self.problem

    def query(self) -> bool:
        return self.reached.is_set()

    def block_current_stream(self) -> None:
        self.held_back.append(threading.current_thread())


class Rank:
    """A rank of a gloo group, and its host copies."""

    def __init__(self, rank: int, store: Store) -> None:
        self.rank = rank
        self.gloo: Any = dist.ProcessGroupGloo(store, rank, len(PAIR), timedelta(seconds=20))
        self.copies = HostCopies(rank, ["cpu"])

    def begin(self, name: str, *arguments: Any) -> CopiedWork:
        return self.copies.begin(name, getattr(self.gloo, name), arguments)

    def directly(self, name: str, *arguments: Any) -> Any:
        return self.copies.pass_by(name, getattr(self.gloo, name), arguments)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> CopiedWork:
        return self.begin("broadcast", [tensor], broadcast_from(root))


def broadcast_from(root: int) -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = root
    return options


def in_threads(run: Callable[[int], Any]) -> None:
    threads = [threading.Thread(target=run, args=(rank,)) for rank in PAIR]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(copied_work, "new_stream", lambda _: made)
    monkeypatch.setattr(host_copies, "record_current", lambda _: made)
    return made


@pytest.fixture
def ranks(device: Device) -> Iterator[list[Rank]]:
    store, found = HashStore(), dict[int, Rank]()
    in_threads(lambda rank: found.setdefault(rank, Rank(rank, PrefixStore("gloo", store))))
    before = threading.active_count()
    yield [found[rank] for rank in PAIR]
    device.reached.set()
    for one in found.values():
        one.copies.end_hand_over()
        one.gloo = None  # frees it, which ends its threads and connections
        one.copies.join_threads()
    assert threading.active_count() <= before, "a thread of the copies is left"


def test_a_call_with_host_tensors_does_not_overtake_one_that_waits_for_the_device(
    ranks: list[Rank], device: Device
) -> None:
    device.reached.clear()
    works = [one.broadcast(torch.ones(3)) for one in ranks]
    second = [torch.full((3,), 2.0 + one.rank) for one in ranks]
    done: list[Any] = []
    caller = threading.Thread(
        target=lambda: done.append(ranks[0].directly("broadcast", [second[0]], broadcast_from(0)))
    )
    caller.start()
    wait_until(lambda: ranks[0].copies._changed._waiters or not caller.is_alive(), "it waits for a copy")  # type: ignore[attr-defined]
    assert not done
    device.reached.set()
    caller.join()
    done.append(ranks[1].directly("broadcast", [second[1]], broadcast_from(0)))
    for work in (*works, *done):
        work.wait()
    assert [tensor.tolist() for tensor in second] == [[2.0] * 3] * 2


def test_the_caller_does_not_wait_for_the_device_and_sees_when_it_has_the_result(
    ranks: list[Rank], device: Device
) -> None:
    tensors = [torch.full((3,), float(one.rank)) for one in ranks]
    device.reached.clear()
    works = [one.broadcast(tensor, 1) for one, tensor in zip(ranks, tensors, strict=True)]
    with pytest.raises(RuntimeError, match=r"not ended within 0\.01 s"):
        works[0].wait(timedelta(milliseconds=10))
    assert not works[0].is_completed()
    device.reached.set()
    works[0].wait()
    assert tensors[0].tolist() == [1.0] * 3
    device.reached.clear()  # the copy to the device is late
    assert not works[0].is_completed()
    device.reached.set()
    assert works[0].is_completed()
    assert works[0].is_success()


def test_a_result_arrives_though_nobody_waits_and_the_work_is_dropped(ranks: list[Rank]) -> None:
    tensors = [torch.full((3,), float(one.rank)) for one in ranks]
    for one, tensor in zip(ranks, tensors, strict=True):
        one.broadcast(tensor, 1)
    wait_until(lambda: tensors[0].tolist() == [1.0] * 3, "the result")


def test_sends_do_not_wait_for_the_recvs_before_them(ranks: list[Rank]) -> None:
    received = [torch.zeros(3) for _ in PAIR]
    recvs = [ranks[rank].begin("recv", [received[rank]], 1 - rank, 0) for rank in PAIR]
    sends = [ranks[rank].begin("send", [torch.full((3,), float(rank))], 1 - rank, 0) for rank in PAIR]
    for work in (*recvs, *sends):
        work.wait()
    assert [tensor.tolist() for tensor in received] == [[1.0] * 3, [0.0] * 3]
    with pytest.raises(RuntimeError, match="have no future"):
        sends[0].get_future()


def test_who_waits_holds_the_own_stream_back(ranks: list[Rank], device: Device) -> None:
    works = [one.broadcast(torch.ones(3)) for one in ranks]
    works[0].wait()
    assert device.held_back[-1] is threading.current_thread()
    source = ranks[1].begin("recv_anysource", [torch.zeros(3)], 0)
    ranks[0].begin("send", [torch.ones(3)], 1, 0).wait()
    source.wait()
    assert source._source_rank() == 0


def test_what_goes_wrong_on_the_device_reaches_the_work_and_the_future(
    ranks: list[Rank], device: Device
) -> None:
    device.problem = RuntimeError("an illegal memory access was encountered")
    work = ranks[0].broadcast(torch.ones(3))
    future = work.get_future()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        future.wait()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert "illegal memory access" in str(work.exception())


def test_what_gloo_says_of_the_arguments_reaches_the_work_and_later_calls_go_on(ranks: list[Rank]) -> None:
    work = ranks[0].broadcast(torch.ones(3), root=7)
    with pytest.raises(RuntimeError, match="invalid root rank"):
        work.wait()
    tensors = [torch.full((3,), float(one.rank)) for one in ranks]
    for work in [one.broadcast(tensor, 1) for one, tensor in zip(ranks, tensors, strict=True)]:
        work.wait()
    assert tensors[0].tolist() == [1.0] * 3


def test_what_goes_wrong_in_the_delivery_reaches_the_work(
    ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(_: object) -> None:
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(copied_work.Copy, "bring", exhausted)
    works = [one.broadcast(torch.ones(3)) for one in ranks]
    works[0].wait()  # it only sends
    with pytest.raises(torch.OutOfMemoryError, match="no memory left"):
        works[1].wait()


def test_a_call_that_gets_no_memory_has_not_begun(ranks: list[Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory left")

    with monkeypatch.context() as patched:
        patched.setattr(host_copies, "pinned_empty", exhausted)
        with pytest.raises(torch.OutOfMemoryError):
            ranks[0].broadcast(torch.ones(3))
    tensors = [torch.full((3,), float(one.rank)) for one in ranks]
    in_threads(lambda rank: ranks[rank].directly("broadcast", [tensors[rank]], broadcast_from(1)).wait())
    assert tensors[0].tolist() == [1.0] * 3


def test_callbacks_may_wait_for_a_later_call_however_many(ranks: list[Rank], device: Device) -> None:
    def run(rank: int) -> None:
        last: list[CopiedWork] = []

        def wait_for_last(_: object) -> bool:
            return last[0].wait(timedelta(seconds=20))

        works = [ranks[rank].broadcast(torch.ones(3)) for _ in range(6)]
        futures = [work.get_future().then(wait_for_last) for work in works]
        last.append(ranks[rank].broadcast(torch.ones(3)))
        all_begun.wait(20.0)
        device.reached.set()
        found[rank] = [future.wait() for future in futures]

    all_begun = threading.Barrier(len(PAIR))
    found: dict[int, list[bool]] = {}
    device.reached.clear()
    in_threads(run)
    assert found == {rank: [True] * 6 for rank in PAIR}


def test_waits_end_when_the_connection_does(ranks: list[Rank]) -> None:
    work = ranks[0].broadcast(torch.ones(3), 1)
    future = work.get_future()
    ranks[1].gloo = None
    with pytest.raises(RuntimeError, match="gloo"):
        work.wait()
    with pytest.raises(RuntimeError, match="gloo"):
        future.wait()
