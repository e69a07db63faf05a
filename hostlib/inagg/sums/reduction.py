# SPDX-License-Identifier: Apache-2.0
"""One sum, and the memory that receives its result."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from inagg.counters import TalliedCall
from inagg.device.sums import DeviceSum, SumRequest
from inagg.errors import ConfigurationError, DeliveryError, InaggError

Callback = Callable[[], None]


class Queue(Protocol):
    """The queue that a sum is in: `inagg.sums.queue.SumQueue`."""

    def wait(self, reduction: "Reduction", timeout_s: float | None) -> bool: ...

    def watch(self, reduction: "Reduction", callback: Callback) -> None: ...

    def overrun(self, reduction: "Reduction") -> None: ...


class Reduction:
    """A sum, which is under way until `finish` is called. `SumQueue.submit` makes it.

    ticket: the core's number of it. timeout_s: see `SumQueue.submit`. on_device: the device's part, if there is one.
    The result is then queued on the device, and `block_current_stream` makes the program's work wait for it. tallied:
    the call that this sum belongs to. `flat` and `memories` are those of the request.
    """

    def __init__(
        self,
        queue: Queue,
        ticket: int,
        request: SumRequest,
        *,
        timeout_s: float,
        on_device: DeviceSum | None = None,
        tallied: TalliedCall | None = None,
    ) -> None:
        self.ticket = ticket
        self.flat = request.flat
        self.memories = request.memories
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        self._queue = queue
        self._deliver = request.deliver
        self._on_device = on_device
        self._tallied = tallied
        self._finishing = threading.Lock()  # held while the result is delivered; guards what follows
        self._finished = False
        self._error: InaggError | None = None

    @property
    def finished(self) -> bool:
        return self._finished

    @property
    def error(self) -> InaggError | None:
        """What went wrong, once finished."""
        return self._error

    def finish(
        self,
        error: InaggError | None,
        *,
        translate: Callable[[Exception], InaggError],
        forget: Callback,
    ) -> None:
        """Finish the sum; for the queue. The first call delivers the result, and other calls wait for it.

        error: why there is no result. translate: makes an InaggError from what a device raised. forget: called before
        other threads see the sum finished, and can submit another sum in the same memory.
        """
        with self._finishing:
            if self._finished:
                return
            if error is None:
                error = self._bring(translate)
            if error is None and self._tallied is not None:
                self._tallied.end()
            self._error = error
            forget()
            self._finished = True

    def _bring(self, translate: Callable[[Exception], InaggError]) -> InaggError | None:
        """Bring the result to its memory. Returns what went wrong, if anything."""
        if self._on_device is not None:
            problem = self._on_device.wait_queued()
            return None if problem is None else translate(problem)
        if self._deliver is None:
            return None
        try:
            # Any thread may deliver. Inference mode lets it write to tensors that were made in that mode too.
            with torch.inference_mode():
                self._deliver()
        except Exception as problem:
            # Any error of torch, such as OutOfMemoryError. It concerns this rank only: the others have their results.
            return DeliveryError(problem)
        return None

    def wait(self, timeout_s: float | None) -> bool:
        """Wait. True once finished, with or without an error; False after `timeout_s` seconds.

        timeout_s: None waits until the deadline. If the sum is not done by then, it and the job end with an error.
        """
        if timeout_s is not None:
            return self._queue.wait(self, timeout_s)
        if not self._queue.wait(self, max(0.0, self.deadline - time.monotonic())):
            self._queue.overrun(self)
            self._queue.wait(self, None)
        return True

    def on_finished(self, callback: Callback) -> None:
        """Call `callback` once when finished, on a thread of the queue; if the job has ended, here and at once."""
        self._queue.watch(self, callback)

    def deliver_unasked(self) -> None:
        """Deliver the result as soon as the sum is done, even if nobody waits.

        A program that has dropped the Work may synchronise in another way, and then write to the tensor.
        """
        if self._on_device is None and self._deliver is not None:  # for a device, its thread delivers
            self.on_finished(lambda: None)

    @property
    def device(self) -> torch.device:
        return self.flat.device

    def query(self) -> bool:
        """Whether the result of a finished sum is in memory; on a device, whether the device has reached it."""
        return self._on_device is None or self._error is not None or self._on_device.query()

    def block_current_stream(self) -> None:
        """Make this thread's current stream wait for the result of a finished sum."""
        if self._on_device is not None:
            self._on_device.block_current_stream()


def check_writable(tensors: Iterable[torch.Tensor]) -> None:
    """Check tensors that will hold results.

    Raises:
        ConfigurationError: a tensor has no memory, or its elements share memory.
    """
    for tensor in tensors:
        if tensor.numel() > 0 and tensor.data_ptr() == 0:
            raise ConfigurationError("a tensor without memory, such as a freed parameter, cannot be summed")
        if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            raise ConfigurationError(
                "an expanded tensor cannot hold a sum: its elements share memory; clone() it"
            )


def memories_of(tensors: Iterable[torch.Tensor]) -> tuple[range, ...]:
    """The addresses from each tensor's first element to its last, ascending. Memories that touch are one."""
    merged: list[range] = []
    for memory in sorted(map(_memory_of, tensors), key=lambda memory: memory.start):
        if merged and memory.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, memory.stop))
        elif memory:
            merged.append(memory)
    return tuple(merged)


def _memory_of(tensor: torch.Tensor) -> range:
    if tensor.numel() == 0:
        return range(0)
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in extents)
    return range(tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size())
