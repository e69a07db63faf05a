# SPDX-License-Identifier: Apache-2.0
"""One sum of a tensor that the core cannot access, such as one on a GPU.

A `CopiedSum` copies the elements to the host, where the core sums them like those of any host tensor. In a `StagedSum`
the device makes lanes and takes sums; `Staging` describes the interface to the core. Both do their part in three steps,
each on a thread and a stream of its own (`inagg.device.threads`).
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from inagg._core import Staging, Transport
from inagg.device.numerics import SPECIAL, Lanes
from inagg.device.streams import Event, Stream, pinned_empty
from inagg.profile import profile_range

_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

PORTION = 1 << 19  # elements of a portion to unpack: 2 MiB of floats


@dataclass(frozen=True, eq=False)
class SumRequest:
    """An in-place sum of `flat` (contiguous, one-dimensional; float32, or half floats that the core sums) that is asked
    for.

    results: the tensors that will have the result. memories: their addresses. average: whether to divide by the number
    of workers. residual: a tensor like `flat` that receives the residual; None: it is not computed. deliver: brings the
    sum to the results; None: they are `flat`.
    """

    flat: torch.Tensor
    results: Sequence[torch.Tensor]
    memories: Sequence[range]
    average: bool = False
    residual: torch.Tensor | None = None
    deliver: Callable[[], object] | None = None


class DeviceSum(ABC):
    """A sum in progress. `threads.Devices` makes it, and calls `scan`, `pack` and `unpack` once each, with inference
    mode and the step's stream as the current ones.

    ready: after this event the device has the elements. ticket: of the core. pinned: host memory that the device
    accesses. packs: whether `pack` does anything.
    """

    packs: ClassVar[bool]
    ticket: int
    pinned: Sequence[torch.Tensor]

    def __init__(self, transport: Transport, request: SumRequest, ready: Event) -> None:
        self.request = request
        self.flat = request.flat
        self.touched = [request.flat, *request.results]
        if request.residual is not None:
            self.touched.append(request.residual)
        self._transport = transport
        self._ready = ready
        self._queued = threading.Event()
        self._end: Event | None = None
        self._problem: Exception | None = None

    @abstractmethod
    def submit(self, context: int) -> None:
        """Give the sum its place in the order of the core. Raises EngineError if the group has failed."""

    @abstractmethod
    def scan(self, stream: Stream) -> None:
        """Wait for the elements, and tell the core what it needs to begin."""

    @abstractmethod
    def pack(self, stream: Stream) -> None:
        """Make what the core sends. Called if `packs`."""

    @abstractmethod
    def unpack(self, stream: Stream) -> None:
        """Queue the result, except for `request.deliver`."""

    def end(self, event: Event | None, problem: Exception | None = None) -> None:
        """Mark the sum as queued completely on the device, or as failed with `problem`."""
        self._end, self._problem = event, problem
        self._queued.set()

    def wait_queued(self) -> Exception | None:
        """Wait until the result is queued, after the core has completed the sum; return the device's error, if any."""
        self._queued.wait()
        return self._problem

    def query(self) -> bool:
        """Whether the device has the result."""
        return self._queued.is_set() and (self._end is None or self._end.query())

    def block_current_stream(self) -> None:
        """Make later work of the calling thread's current stream wait for the result."""
        if self._end is not None:
            self._end.block_current_stream()


class CopiedSum(DeviceSum):
    """Copies the elements to the host and the sums back.

    seed: of stochastic rounding; None rounds to nearest.
    """

    packs = False

    def __init__(
        self, transport: Transport, request: SumRequest, ready: Event, lanes: Lanes, seed: int | None
    ) -> None:
        super().__init__(transport, request, ready)
        self._lanes, self._seed = lanes, seed
        flat = request.flat
        self._host = pinned_empty(flat.numel(), flat.dtype, flat.device)
        self._left = pinned_empty(
            flat.numel() if request.residual is not None else 0, torch.float32, flat.device
        )
        self.pinned = (self._host, self._left)

    def submit(self, context: int) -> None:
        # torch calls pinned tensors memory of CUDA (`__dlpack_device__`); numpy does not, but has no bfloat16.
        self.ticket = self._transport.submit(
            self._host.numpy() if self._host.dtype == torch.float32 else self._host,
            lane_bits=self._lanes.bits,
            average=self.request.average,
            stochastic=self._seed,
            context=context,
            residual=None if self.request.residual is None else self._left.numpy(),
            filled=False,
        )

    def scan(self, stream: Stream) -> None:
        self._ready.block_current_stream()
        self._host.copy_(self.flat, non_blocking=True)
        _synchronize(stream.record())
        self._transport.filled(self.ticket)

    def pack(self, stream: Stream) -> None:
        raise AssertionError("the core packs")

    def unpack(self, stream: Stream) -> None:
        self._ready.block_current_stream()
        with profile_range("wait for the sum"):
            self._transport.wait(self.ticket)
        self.flat.copy_(self._host, non_blocking=True)
        if self.request.residual is not None:
            self.request.residual.copy_(self._left, non_blocking=True)


class SumMemory:
    """What the device and the core share for a staged sum: a `Staging` in pinned memory, as tensors.

    packets: int32 [K, stride / 4], a packet a row, with the lanes behind `staging.offset` bytes. exponents, agreed:
    int16 [K]. checksums: int32 [K], the bits of uint32.
    """

    def __init__(self, elements: int, lanes: Lanes, seed: int | None, device: torch.device) -> None:
        self.lanes, self.seed = lanes, seed
        size = Staging.bytes_needed(elements, lane_bits=lanes.bits, words=lanes.words)
        self.pinned = pinned_empty(size, torch.uint8, device)
        self.staging = Staging(
            elements,
            lane_bits=lanes.bits,
            workers=lanes.workers,
            words=lanes.words,
            stochastic=seed,
            memory=self.pinned.numpy(),
        )
        self.packets = (
            self._place(self.staging.datagrams).view(torch.int32).view(-1, self.staging.stride // 4)
        )
        self.exponents = self._place(self.staging.exponents)
        self.agreed = self._place(self.staging.agreed)
        self.checksums = self._place(self.staging.checksums)

    def _place(self, array: NDArray[Any]) -> torch.Tensor:
        start = array.ctypes.data - self.pinned.data_ptr()
        return self.pinned[start : start + array.nbytes].view(_SIGNED[array.itemsize])


class Portions(Protocol):
    """How a device makes lanes and takes sums, between the tensors of a request and a `SumMemory`. Queues work on the
    current stream, and does not wait for it."""

    most: int  # elements of a portion

    def __init__(self, request: SumRequest, memory: SumMemory) -> None: ...

    def scan(self) -> None:
        """Write this rank's exponents of all blocks."""

    def pack(self, first: int, last: int) -> None:
        """Write lanes, checksums and residuals of the blocks first to last (exclusive). `agreed` has their exponents,
        and `staging.limits` their limits."""

    def unpack(self, first: int, last: int) -> None:
        """Write the sums in the lanes of these blocks to the tensor, or the means."""


class StagedSum(DeviceSum):
    """The device makes the lanes.

    Portions of blocks go through the steps, so that copies, packets and kernels overlap. The exponent of a block is
    agreed when the result of the block S before it arrives, with S slots. So a portion to pack has S / 4 blocks: when
    the device makes it, up to three quarters of the slots are still in flight.
    """

    packs = True

    def __init__(
        self,
        transport: Transport,
        request: SumRequest,
        ready: Event,
        memory: SumMemory,
        portions: type[Portions],
        slots: int,
    ) -> None:
        super().__init__(transport, request, ready)
        if request.flat.dtype != torch.float32:
            raise TypeError(f"a device makes lanes of float32, not of {request.flat.dtype}")
        self._staging, self._size = memory.staging, memory.lanes.block_elements
        self._portions = portions(request, memory)
        self._to_pack = max(1, min(slots // 4, self._portions.most // self._size))
        self._to_unpack = max(1, min(PORTION, self._portions.most) // self._size)
        self.pinned = (memory.pinned,)

    def submit(self, context: int) -> None:
        self.ticket = self._transport.submit_staged(
            self._staging, average=self.request.average, context=context
        )

    def scan(self, stream: Stream) -> None:
        self._ready.block_current_stream()
        if self._staging.blocks == 0:
            return
        self._portions.scan()
        _synchronize(stream.record())
        numbers = np.flatnonzero(self._staging.exponents & SPECIAL != 0)
        self._transport.scanned(self._staging, numbers, self._floats(numbers))

    def pack(self, stream: Stream) -> None:
        packed, blocks = 0, self._staging.blocks
        under_way: deque[tuple[int, Event]] = deque()
        while packed < blocks:
            with profile_range("wait for exponents"):
                known, _ = self._progress(known=min(packed + self._to_pack, blocks) - 1)
            known = _whole(packed, known, self._to_pack, blocks)
            for first, last in _pieces(packed, known, self._to_pack):
                self._portions.pack(first, last)
                under_way.append((last, stream.record()))
                if len(under_way) > 1:  # queue the next portion before the host waits for this one
                    self._packed(*under_way.popleft())
            while under_way:
                self._packed(*under_way.popleft())
            packed = known

    def _packed(self, blocks: int, event: Event) -> None:
        _synchronize(event)
        self._transport.packed(self._staging, blocks)

    def unpack(self, stream: Stream) -> None:
        self._ready.block_current_stream()
        unpacked, blocks = 0, self._staging.blocks
        while unpacked < blocks:
            with profile_range("wait for sums"):
                _, summed = self._progress(summed=min(unpacked + self._to_unpack, blocks) - 1)
            summed = _whole(unpacked, summed, self._to_unpack, blocks)
            for first, last in _pieces(unpacked, summed, self._to_unpack):
                self._portions.unpack(first, last)
            unpacked = summed
        with profile_range("wait for the sum"):
            self._transport.wait(self.ticket)
        self._set_floats(*self._transport.special_sums(self._staging))
        if self.request.residual is not None:
            self._set_outlier_residuals(
                self.request.residual, *self._transport.outlier_residuals(self._staging)
            )

    def _progress(self, *, known: int | None = None, summed: int | None = None) -> tuple[int, int]:
        """Wait until the exponents of more than `known` blocks are agreed, or more than `summed` blocks are summed."""
        most = self._staging.blocks
        found = self._transport.progress(
            self._staging, most if known is None else known, most if summed is None else summed
        )
        assert found is not None  # there is no timeout
        return found

    def _floats(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """The elements of blocks `numbers` (ascending) on the host: [m, L]; a short last block is padded with zeros."""
        found = np.zeros((len(numbers), self._size), np.float32)
        if len(numbers) == 0:  # the usual case
            return found
        index, full, short = self._full_and_short(self.flat, numbers)
        found[: len(index)] = full[index].cpu().numpy()
        if len(index) < len(numbers):
            found[-1, : len(short)] = short.cpu().numpy()
        return found

    def _set_floats(self, numbers: NDArray[np.int64], floats: NDArray[np.float32]) -> None:
        """Write elements that are laid out as `_floats` returns them into the tensor."""
        if len(numbers) == 0:  # the usual case
            return
        index, full, short = self._full_and_short(self.flat, numbers)
        given = torch.from_numpy(floats)
        full[index] = given[: len(index)].to(self.flat.device)
        if len(index) < len(numbers):
            short.copy_(given[-1, : len(short)])

    def _set_outlier_residuals(
        self, residual: torch.Tensor, numbers: NDArray[np.int64], floats: NDArray[np.float32]
    ) -> None:
        """Write the residuals of outliers, laid out as `_floats` returns elements, 0 for others, to their places."""
        if len(numbers) == 0:  # the usual case
            return
        index, full, short = self._full_and_short(residual, numbers)
        given = torch.from_numpy(floats).to(self.flat.device)
        full[index] = torch.where(given[: len(index)] != 0, given[: len(index)], full[index])
        if len(index) < len(numbers):
            short.copy_(torch.where(given[-1, : len(short)] != 0, given[-1, : len(short)], short))

    def _full_and_short(
        self, flat: torch.Tensor, numbers: NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Those of `numbers` that are full blocks, all full blocks of `flat`, and the elements of a short last one."""
        count = flat.numel() // self._size
        full, short = flat[: count * self._size], flat[count * self._size :]
        return torch.from_numpy(numbers[numbers < count]).to(flat.device), full.view(-1, self._size), short


def _synchronize(event: Event) -> None:
    with profile_range("wait for the device"):
        event.synchronize()


def _whole(first: int, last: int, step: int, blocks: int) -> int:
    """`last`, or less, so that whole steps lie between: the rest joins the next ones."""
    return last if last == blocks else last - (last - first) % step


def _pieces(first: int, last: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(first, last, step):
        yield start, min(start + step, last)
