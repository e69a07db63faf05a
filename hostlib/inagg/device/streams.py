# SPDX-License-Identifier: Apache-2.0
"""CUDA's streams and events, and their stand-ins for devices of type "cpu", where work is done when it is queued.

The rules are those of torch's own gloo and NCCL groups for CUDA tensors:

- A collective does its work on streams of its own. They wait for an event that is recorded on the current stream at
  the call (`record_current`): the collective sees what the program queued before, and no more.
- `Work.wait` makes the current stream wait for an event behind the result (`Event.block_current_stream`). Neither that
  stream nor the default one is ever synchronised with the host.
- The memory of a tensor is not reused before these streams have passed the point where the tensor was dropped
  (`Stream.keep`, which is torch's record_stream).
- Temporary tensors are made, used and dropped within one stream: the allocator may reuse their memory at once. Pinned
  memory is the caching host allocator's, which waits for the copies that it was used for.
"""

import contextlib
from collections.abc import Iterator
from typing import Protocol

import torch

from inagg.errors import ConfigurationError


class Event(Protocol):
    """A point in a stream. Names are those of torch.cuda.Event."""

    def synchronize(self) -> None:
        """Block the calling thread until all before the event is done."""

    def query(self) -> bool:
        """Whether all before the event is done."""

    def block_current_stream(self) -> None:
        """What the calling thread queues from now on, on its current stream, is done after what is before the event."""


class Stream(Protocol):
    """Work that a device does in the order in which it is queued. One thread at a time may use it."""

    def current(self) -> contextlib.AbstractContextManager[None]:
        """The calling thread's current stream, in the block."""

    def record(self) -> Event:
        """An event behind all that has been queued here."""

    def keep(self, tensor: torch.Tensor) -> None:
        """When `tensor` is dropped, its memory stays until what has been queued here by then is done."""


def on_device(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The calling thread's current device, in the block. A thread begins with the first GPU, and gets a context there,
    which takes some hundred MB of it, as soon as that one is made current again."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def new_stream(device: torch.device) -> Stream:
    return _CudaStream(device) if device.type == "cuda" else _Immediate()


def record_current(device: torch.device) -> Event:
    """An event behind all that the calling thread's current stream of the device has.

    Raises:
        ConfigurationError: the stream is being captured into a CUDA graph, which cannot have the host's part.
    """
    if device.type != "cuda":
        return _Immediate()
    with on_device(device):  # the question is about the current device's stream
        capturing = torch.cuda.is_current_stream_capturing()
    if capturing:
        raise ConfigurationError("a sum through the switch cannot be captured into a CUDA graph")
    return _CudaEvent(torch.cuda.current_stream(device))


def pinned_empty(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of the host that the device copies to and from by itself (with ``non_blocking=True``)."""
    return torch.empty(size, dtype=dtype, pin_memory=device.type == "cuda")


class _Immediate:
    """Stream and event of a device that does everything at once."""

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
        # Of high priority, as gloo's are: small kernels that packets wait for, beside the program's large ones.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        with torch.cuda.stream(self._stream):
            yield

    def record(self) -> Event:
        return _CudaEvent(self._stream)

    def keep(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self._stream)
