# SPDX-License-Identifier: Apache-2.0
"""CUDA streams and events, and substitutes for the device type "cpu", which does work when it is queued.

The rules are those of torch's own gloo and NCCL groups for CUDA tensors:

- A collective works on its own streams. They wait for an event that is recorded on the current stream at the call
  (`record_current`). So the collective sees everything that the program queued before the call, and nothing later.
- `Work.wait` makes the current stream wait for an event after the result (`Event.block_current_stream`). Neither that
  stream nor the default stream is ever synchronised with the host.
- The memory of a tensor is not reused before these streams have passed the point where the tensor was dropped
  (`Stream.keep`, which is torch's record_stream).
- Temporary tensors are made, used and dropped within one stream, so the allocator may reuse their memory at once.
  Pinned memory comes from torch's caching host allocator, which waits for the copies that used it, but knows of no
  kernel that accesses it (`inagg.device.threads`).
"""

import contextlib
from collections.abc import Iterator
from typing import Protocol

import torch

from inagg.errors import ConfigurationError


class Event(Protocol):
    """A point in a stream, with the method names of torch.cuda.Event."""

    def synchronize(self) -> None:
        """Block the calling thread until all work before the event is done."""

    def query(self) -> bool:
        """Whether all work before the event is done."""

    def block_current_stream(self) -> None:
        """Make later work of the calling thread's current stream wait for the event."""


class Stream(Protocol):
    """A queue of a device's work, done in order. Not thread-safe."""

    def current(self) -> contextlib.AbstractContextManager[None]:
        """Make this the calling thread's current stream in a block."""

    def record(self) -> Event:
        """An event after all work that has been queued here."""

    def keep(self, tensor: torch.Tensor) -> None:
        """Keep the memory of `tensor`, when it is dropped, until the work queued here by then is done."""


def on_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make `device` the calling thread's current device in a block.

    A thread starts with the first GPU as its current device. Returning to it would create a context there, which takes
    several hundred MB of its memory, so a thread stays in this block.
    """
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def new_stream(device: torch.device) -> Stream:
    return _CudaStream(device) if device.type == "cuda" else _Immediate()


def record_current(device: torch.device) -> Event:
    """An event after all work of the calling thread's current stream of the device.

    Raises:
        ConfigurationError: the stream is being captured into a CUDA graph, which cannot include the host's work.
    """
    if device.type != "cuda":
        return _Immediate()
    with on_device(device):  # the call below asks about the current device
        capturing = torch.cuda.is_current_stream_capturing()
    if capturing:
        raise ConfigurationError("a collective through the host cannot be captured into a CUDA graph")
    return _CudaEvent(torch.cuda.current_stream(device))


def pinned_empty(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A host tensor for asynchronous copies to and from the device (``non_blocking=True``)."""
    return torch.empty(size, dtype=dtype, device="cpu", pin_memory=device.type == "cuda")


class _Immediate:
    """Stream and event of a device that does work when it is queued."""

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        yield

    def record(self) -> Event:
        return self

    def keep(self, tensor: torch.Tensor) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def block_current_stream(self) -> None:
        pass


class _CudaEvent:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._device = stream.device
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # sleeps while it waits
        self._event.record(stream)

    def synchronize(self) -> None:
        self._event.synchronize()

    def query(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def block_current_stream(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)


class _CudaStream:
    def __init__(self, device: torch.device) -> None:
        # High priority, as in gloo: packets wait for these small kernels, which run beside the program's large ones.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        with torch.cuda.stream(self._stream):
            yield

    def record(self) -> Event:
        return _CudaEvent(self._stream)

    def keep(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self._stream)
