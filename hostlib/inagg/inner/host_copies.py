# SPDX-License-Identifier: Apache-2.0
"""Collectives of device tensors by gloo, through copies in pinned host memory; and of host tensors with gaps.

Gloo's own code for CUDA tensors has fewer collectives, and crashes in some. So gloo gets contiguous host tensors only:

1. The caller's thread queues copies of what the collective reads, on a stream that waits for the current stream.
2. One thread a group waits for these copies and hands the call to gloo, in the order of calls, because all ranks must
   call gloo's collectives in the same order. It does not wait for gloo: the send after a recv must be handed over too.
   A call with CPU tensors, which gloo gets directly, waits until all earlier calls have been handed over.
3. Whoever first notices the end of the collective queues copies of what it wrote, on another stream: a thread that
   waits for the Work, or gloo's thread that has completed it (`inagg.inner.copied_work`).

Streams, events and memory follow `inagg.device.streams`. Tensors may have any layout, because copies are contiguous.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Work

from inagg.device.streams import on_device, pinned_empty, record_current
from inagg.errors import ConfigurationError
from inagg.inner.arguments import (
    SCATTER,
    flatten,
    is_flat,
    is_plain,
    is_single,
    map_tensors,
    tensors_of,
    use_of,
)
from inagg.inner.copied_work import CopiedCall, CopiedWork, Copy, Streams, Threads
from inagg.sums.calls import is_reduction
from inagg.thread_state import ThreadState

# Gloo completes these when somebody waits for them, which takes until another rank sends or receives.
_BY_WAITING = ("send", "recv", "recv_anysource")

# Gloo's works of these have no future, and only a wait completes them. A thread completes those of copies.
_WITHOUT_FUTURE = SCATTER | {"reduce_scatter"}

_BITWISE = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)

# Types that gloo carries. It carries the bytes of others, if it need not combine elements.
_CARRIED = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
    }
)


class HostCopies:
    """Begins the collectives of one group. Any thread may call it.

    Args:
        rank: this process's rank in the group.
        types: the device types whose tensors gloo does not get. Tests use "cpu" as one.
    """

    def __init__(self, rank: int, types: Sequence[str]) -> None:
        self._rank = rank
        self._types = frozenset(types)
        self._changed = threading.Condition()  # its lock guards what follows, and the order of calls
        self._streams: dict[torch.device, Streams] = {}
        self._thread: threading.Thread | None = None
        self._begun = self._handed_over = 0
        self._calls: queue.SimpleQueue[CopiedCall | None] = queue.SimpleQueue()
        self._threads = Threads()

    def take(self, name: str, arguments: Sequence[Any]) -> bool:
        """Whether a call of the method `name` with these arguments needs copies on the host.

        Gloo works on the memory of host tensors from the first element on, whatever their strides.

        Raises:
            ConfigurationError: gloo would have to combine elements of a type that it does not know. It would say so
                later, and on some ranks in the next barrier only.
        """
        tensors = [
            tensor for tensor in tensors_of(arguments) if tensor.is_cpu or tensor.device.type in self._types
        ]
        unknown = next((tensor for tensor in tensors if tensor.dtype not in _CARRIED), None)
        if is_reduction(name):
            wrong = unknown
            if any(arguments[-1].reduceOp == operation for operation in _BITWISE):
                wrong = next((tensor for tensor in tensors if tensor.is_floating_point()), unknown)
            if wrong is not None:
                raise ConfigurationError(
                    f"{name}: nothing combines elements of {wrong.dtype} in this way on the CPU: convert them first"
                )
        return (
            unknown is not None
            or (name in _WITHOUT_FUTURE and len(tensors) > 0)
            or any(tensor.device.type in self._types or not is_plain(tensor) for tensor in tensors)
        )

    def pass_by(self, name: str, method: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Call `method`, named `name`, directly, after all earlier calls have been handed over."""
        if self._handed_over != self._begun:
            with self._changed:
                self._changed.wait_for(lambda: self._handed_over == self._begun)
        arguments = flatten(name, arguments)
        if name == "reduce" and not use_of(name, arguments, self._rank).written:
            # Gloo leaves sums of some ranks in tensors that receive no result.
            arguments = map_tensors(lambda _, tensor: tensor.detach().clone(), arguments)
        return method(*arguments)

    def begin(self, name: str, method: Callable[..., Any], arguments: Sequence[Any]) -> CopiedWork:
        """Begin a call of `method`, named `name`, with copies of the tensors. What it raises, the Work's `wait` raises.

        Raises:
            ConfigurationError: a CUDA graph is captured.
            torch.OutOfMemoryError, RuntimeError: the allocation failed.
        """
        with self._changed:
            call = self._copy(name, method, arguments)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="inagg-hand-over", daemon=True)
                self._thread.start()
            self._begun += 1
            self._calls.put(call)
        return CopiedWork(call)

    def future_of(self, work: Work) -> torch.futures.Future[Any]:
        """A future of gloo's `work` whose callbacks may wait for other collectives.

        Those of gloo's own future run on its only thread, which does the other collectives. If `work` has ended, the
        future is done at once, as gloo's is.
        """
        source, state = work.get_future(), ThreadState()
        trigger: torch.futures.Future[None] = torch.futures.Future()

        def complete() -> None:
            with state.restored():
                trigger.set_result(None)

        future = trigger.then(lambda _: source.value())  # C++ too sees what is raised inside then()
        if source.done():
            complete()
        else:
            source.add_done_callback(lambda _: self._threads.run(complete))
        return future

    def _copy(self, name: str, method: Callable[..., Any], arguments: Sequence[Any]) -> CopiedCall:
        """Queue the copies to the host."""
        use = use_of(name, arguments, self._rank)
        keeps_rows = is_single(name) and not is_flat(name, arguments)
        written: list[Copy] = []

        def copied(place: int, tensor: torch.Tensor) -> torch.Tensor:
            streams = self._streams[tensor.device]
            strided = tensor.layout == torch.strided
            given = tensor.detach() if strided else tensor  # a detached sparse tensor would be another tensor
            with on_device(tensor.device), streams.to_host.current():
                host = _host_copy(given, place in use.read)
            if place in use.written:
                written.append(Copy(given, host))
            if not strided:
                return host
            streams.to_host.keep(given)
            streams.to_device.keep(given)
            if keeps_rows and given.dim() > 0:
                host = host.view(len(given), given[:1].numel())
            return host.view(torch.uint8) if as_bytes else host

        tensors = tensors_of(arguments)
        types = {tensor.dtype for tensor in tensors}
        as_bytes = not is_reduction(name) and (len(types) > 1 or not types <= _CARRIED)
        devices = {tensor.device for tensor in tensors}
        for device in devices:
            ready = record_current(device)
            if device not in self._streams:
                self._streams[device] = Streams(device)
            with on_device(device), self._streams[device].to_host.current():
                ready.block_current_stream()
        results = tensors_of(arguments[:1])
        # Gloo's threads write to the copies, so they must not be inference tensors.
        with torch.inference_mode(False), torch.no_grad():
            arguments = map_tensors(copied, arguments)
        used = {device: self._streams[device] for device in devices}
        arrived = {device: streams.to_host.record() for device, streams in used.items()}
        return CopiedCall(
            lambda: method(*arguments),
            used,
            arrived,
            written,
            results,
            self._threads,
            by_waiting=name in _BY_WAITING,
        )

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.hand_over()
            del call  # frees its tensors before the wait for the next call
            with self._changed:
                self._handed_over += 1
                self._changed.notify_all()

    def end_hand_over(self) -> None:
        """Hand over what has been begun, and end the thread. Nothing must be begun afterwards."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()

    def join_threads(self) -> None:
        """Wait until all callbacks have returned, after gloo has ended."""
        self._threads.join()


def _host_copy(given: torch.Tensor, read: bool) -> torch.Tensor:
    """Host memory for a tensor: flat, unless it is sparse. If gloo reads it, queue the copy on the current stream."""
    if given.layout != torch.strided:
        return given.to("cpu", copy=True)
    host = pinned_empty(given.numel(), given.dtype, given.device)
    if read:
        host.view(given.shape).copy_(given, non_blocking=True)
    return host
