# SPDX-License-Identifier: Apache-2.0
"""Everything that has to do with CUDA's streams, in one place: queues of a device's work, and marks in them.

On a device of type "cpu" work is done when it is queued, and nothing here does anything. The rules are those of
torch's own gloo and NCCL groups for CUDA tensors:

- what a collective does on the device goes to streams of its own, which wait for an event recorded on the current
  stream at the call (`mark_current`, `Mark.hold_back`): so it sees what the program queued before, and no more;
- `Work.wait` makes the current stream wait for an event recorded behind the result (`Mark.hold_back`); neither that
  stream nor the default one is ever synchronised with the host;
- a tensor's memory is not given to others before these streams have passed the point where it was let go of
  (`Queue.keep`, which is torch's record_stream);
- temporary tensors are made, used and let go of within one queue, in whose order the allocator may reuse their memory
  at once; page-locked memory is the caching host allocator's, which waits for the copies that it was used for.
"""

import contextlib
from collections.abc import Iterator
from typing import Protocol

import torch

from inagg.errors import ConfigurationError


class Mark(Protocol):
    """A point in a queue."""

    def wait(self) -> None:
        """Block the calling thread until all before it is done."""

    def reached(self) -> bool:
        """Whether all before it is done."""

    def hold_back(self) -> None:
        """What the calling thread queues from now on, on its current stream, is done after what is before the mark."""


class Queue(Protocol):
    """Work that a device does in the order in which it is queued. One thread at a time may use it."""

    def running(self) -> contextlib.AbstractContextManager[None]:
        """What the calling thread queues in the block goes here."""

    def mark(self) -> Mark:
        """Behind all that has been queued here."""

    def keep(self, tensor: torch.Tensor) -> None:
        """When `tensor` is let go of, its memory stays until what has been queued here by then is done."""


def working_on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The calling thread's current device, in the block. A thread begins with the first GPU, and gets a context there,
    which takes some hundred MB of it, as soon as that one is made current again."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def new_queue(device: torch.device) -> Queue:
    return _Stream(device) if device.type == "cuda" else _Done()


def mark_current(device: torch.device) -> Mark:
    """Behind all that the calling thread's current stream of the device has.

    Raises:
        ConfigurationError: the stream is being captured into a CUDA graph, which cannot have the host's part.
    """
    if device.type != "cuda":
        return _Done()
    with working_on(device):  # the question is about the current device's stream
        capturing = torch.cuda.is_current_stream_capturing()
    if capturing:
        raise ConfigurationError("a sum through the switch cannot be captured into a CUDA graph")
    return _Event(torch.cuda.current_stream(device))


def host_empty(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of the host that the device copies to and from by itself (with ``non_blocking=True``)."""
    return torch.empty(size, dtype=dtype, pin_memory=device.type == "cuda")


class _Done:
    """Queue and mark of a device that does everything at once."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        yield

    def mark(self) -> Mark:
        return self

    def keep(self, tensor: torch.Tensor) -> None:
        pass

    def wait(self) -> None:
        pass

    def reached(self) -> bool:
        return True

    def hold_back(self) -> None:
        pass


class _Event:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._device = stream.device
        self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # sleeps while it waits
        self._event.record(stream)

    def wait(self) -> None:
        self._event.synchronize()

    def reached(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def hold_back(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)


class _Stream:
    def __init__(self, device: torch.device) -> None:
        # Of high priority, as gloo's are: small kernels that packets wait for, beside the program's large ones.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> Mark:
        return _Event(self._stream)

    def keep(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self._stream)
