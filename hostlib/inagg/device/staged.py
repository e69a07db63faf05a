# SPDX-License-Identifier: Apache-2.0
"""Sums of tensors that the core cannot access, such as those on a GPU; `Staging` describes the interface to the core.

A device processes a sum in three stages. Each stage has its own thread and CUDA stream, so that one sum is scanned
while another is packed and a third unpacked, and copies run in both directions:

    scan     computes the exponents of all blocks and copies them to the host
    pack     makes lanes and checksums of blocks whose exponent is agreed and copies them to the host, to be sent
    unpack   copies the summed lanes of blocks back to the device and writes floats into the tensor

A thread waits for an event of its stream or for the core (`Transport.progress`), which also reports failures. Portions
of at most PORTION elements bound the memory that the stages use on the device.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from inagg._core import EngineError, Staging, Transport
from inagg.device.numerics import (
    NO_LIMIT,
    SPECIAL,
    Lanes,
    Scan,
    blocks_of,
    quantise,
    residual,
    sums,
    write_lanes,
)
from inagg.device.streams import Event, Stream, new_stream, on_device, pinned_empty, record_current
from inagg.options import LaneBits

_UP, _LEFT, _DOWN = range(3)  # what a block's factors are for: packing, the residual, unpacking
_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}

PORTION = 1 << 20  # elements: 4 MiB of floats, so that launching takes less time than the work


@dataclass(frozen=True, eq=False)
class SumRequest:
    """An in-place sum of `flat` (contiguous, one-dimensional; float32, or half floats if not staged) that is asked for.

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


class StagedSum:
    """One sum in progress. Made by `Devices.prepare`.

    ready: after this event the device has the floats. seed: of stochastic rounding; None rounds to nearest.
    """

    def __init__(self, request: SumRequest, ready: Event, lanes: Lanes, seed: int | None) -> None:
        self.request = request
        self.flat = flat = request.flat
        self.lanes = lanes
        self.seed = seed
        self.touched = [flat, *request.results]
        if request.residual is not None:
            self.touched.append(request.residual)
        self.ready = ready
        size = Staging.bytes_needed(flat.numel(), lane_bits=lanes.bits, words=lanes.words)
        self.memory = pinned_empty(size, torch.uint8, flat.device)
        self.staging = Staging(
            flat.numel(),
            lane_bits=lanes.bits,
            workers=lanes.workers,
            words=lanes.words,
            stochastic=seed,
            memory=self.memory.numpy(),
        )
        self._factors = pinned_empty(3 * self.staging.blocks, torch.float64, flat.device).view(3, -1)
        self.ticket = 0
        self._queued = threading.Event()
        self._end: Event | None = None
        self._problem: Exception | None = None

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

    def portions(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Blocks first to last (exclusive) in pieces."""
        step = max(1, PORTION // self.lanes.block_elements)
        for start in range(first, last, step):
            yield start, min(start + step, last)

    def blocks(self, first: int, last: int) -> torch.Tensor:
        return blocks_of(self.flat, first, last, self.lanes.block_elements)

    def place(self, array: NDArray[Any]) -> torch.Tensor:
        """An array of `staging` as a flat tensor, for copies to and from the device; unsigned integers as signed."""
        start = array.ctypes.data - self.memory.data_ptr()
        return self.memory[start : start + array.nbytes].view(_SIGNED[array.itemsize])

    def column(self, use: int, first: int, factors: NDArray[np.float64]) -> torch.Tensor:
        """Factors of the blocks from `first` on, on the device: [n, 1]. Each part of `_factors` serves one copy."""
        place = self._factors[use, first : first + len(factors)]
        place.numpy()[:] = factors
        return place.to(self.flat.device, non_blocking=True).unsqueeze(1)

    def limit(self, first: int, last: int) -> torch.Tensor | None:
        """The limits of the blocks first to last (exclusive) on the device: [n, 1]; None if all have NO_LIMIT."""
        limits = self.staging.limits[first:last]
        if (limits == NO_LIMIT).all():  # the usual case
            return None
        return torch.from_numpy(limits).to(self.flat.device).unsqueeze(1)

    def floats(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """The elements of blocks `numbers` (ascending) on the host: [m, L]; a short last block is padded with zeros."""
        found = np.zeros((len(numbers), self.lanes.block_elements), np.float32)
        if len(numbers) == 0:  # the usual case
            return found
        index, full, short = self._full_and_short(self.flat, numbers)
        found[: len(index)] = full[index].cpu().numpy()
        if len(index) < len(numbers):
            found[-1, : len(short)] = short.cpu().numpy()
        return found

    def set_floats(self, numbers: NDArray[np.int64], floats: NDArray[np.float32]) -> None:
        """Write elements that are laid out as `floats` returns them into the tensor."""
        if len(numbers) == 0:  # the usual case
            return
        index, full, short = self._full_and_short(self.flat, numbers)
        given = torch.from_numpy(floats)
        full[index] = given[: len(index)].to(self.flat.device)
        if len(index) < len(numbers):
            short.copy_(given[-1, : len(short)])

    def set_outlier_residuals(
        self, residual: torch.Tensor, numbers: NDArray[np.int64], floats: NDArray[np.float32]
    ) -> None:
        """Write the residuals of outliers, laid out as `floats` returns elements, 0 for others, to their places."""
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
        size = self.lanes.block_elements
        count = flat.numel() // size
        full, short = flat[: count * size], flat[count * size :]
        return torch.from_numpy(numbers[numbers < count]).to(flat.device), full.view(-1, size), short


class Stages:
    """The three stages of one device, for the sums of one job.

    Args:
        fail: called with a reason if the device fails; it must fail the job.
    """

    def __init__(self, transport: Transport, device: torch.device, fail: Callable[[str], None]) -> None:
        self._transport = transport
        self._device = device
        self._fail = fail
        self._lock = threading.Lock()
        self._ended: deque[tuple[range, Event]] = (
            deque()
        )  # results that the device may not have yet; guarded by it
        self._stages = [_Stage(step, new_stream(device)) for step in (self._scan, self._pack, self._unpack)]
        self._threads = [
            threading.Thread(target=self._run, args=(stage,), name=f"inagg-{name}-{device}", daemon=True)
            for name, stage in zip(("scan", "pack", "unpack"), self._stages, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, one: StagedSum) -> None:
        """Start the stages of a sum that has been submitted. Call it in the order of submissions."""
        for stage in self._stages:
            for tensor in one.touched:
                stage.stream.keep(tensor)
            stage.sums.put(one)

    def block_current_stream(self, memory: range) -> None:
        """Make later work of this thread's current stream wait for completed sums whose results overlap `memory`."""
        with self._lock:
            while self._ended and self._ended[0][1].query():
                self._ended.popleft()
            for output, end in self._ended:
                if max(memory.start, output.start) < min(memory.stop, output.stop):
                    end.block_current_stream()

    def close(self) -> None:
        """End the threads. Call it after the transport is closed, which ends the sums in progress."""
        for stage in self._stages:
            stage.sums.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, stage: "_Stage") -> None:
        with on_device(self._device):
            while True:
                one = stage.sums.get()
                if one is None:
                    return
                self._step(stage, one)
                del one  # frees its tensors before the wait for the next sum

    def _step(self, stage: "_Stage", one: StagedSum) -> None:
        try:
            # Inference mode, because the tensors may have been made in it.
            with torch.inference_mode(), stage.stream.current():
                stage.step(one, stage.stream)
        except EngineError:
            one.end(None)  # the waiting thread gets this error from the core
        except Exception as error:
            # Any error of torch, such as OutOfMemoryError: the other ranks cannot complete the sum without this one.
            one.end(None, error)
            self._fail(f"a sum on {self._device}: {type(error).__name__}: {error}")

    def _scan(self, one: StagedSum, stream: Stream) -> None:
        one.ready.block_current_stream()
        staging, lanes = one.staging, one.lanes
        if staging.blocks == 0:
            return
        scan = Scan(lanes, staging.blocks, self._device, one.seed is not None)
        for first, last in one.portions(0, staging.blocks):
            scan.blocks(one.blocks(first, last), first)
        one.place(staging.exponents).copy_(scan.codes(), non_blocking=True)
        stream.record().synchronize()
        numbers = np.flatnonzero(staging.exponents & SPECIAL != 0)
        self._transport.scanned(staging, numbers, one.floats(numbers))

    def _pack(self, one: StagedSum, stream: Stream) -> None:
        staging, packed = one.staging, 0
        under_way: deque[tuple[int, Event]] = deque()
        while packed < staging.blocks:
            known = self._progress(one, known=packed)[0]
            for first, last in one.portions(packed, known):
                self._pack_portion(one, first, last)
                under_way.append((last, stream.record()))
                if len(under_way) > 1:  # queue the next portion before the host waits for this one
                    self._packed(one, *under_way.popleft())
            while under_way:
                self._packed(one, *under_way.popleft())
            packed = known

    def _packed(self, one: StagedSum, blocks: int, event: Event) -> None:
        event.synchronize()
        self._transport.packed(one.staging, blocks)

    def _pack_portion(self, one: StagedSum, first: int, last: int) -> None:
        staging, lanes = one.staging, one.lanes
        codes = staging.agreed[first:last]
        limit = one.limit(first, last)
        elements = one.blocks(first, last)
        quantised = quantise(
            elements,
            one.column(_UP, first, lanes.up(codes)),
            lanes,
            limit=limit,
            seed=one.seed,
            first_element=first * lanes.block_elements,
        )
        packets = torch.empty(last - first, staging.stride, dtype=torch.uint8, device=self._device)
        checksums = write_lanes(quantised, lanes, packets[:, staging.offset :])
        one.place(staging.datagrams[first:last]).copy_(packets.view(-1), non_blocking=True)
        one.place(staging.checksums[first:last]).copy_(checksums, non_blocking=True)
        if one.request.residual is not None:
            left = residual(elements, quantised, one.column(_LEFT, first, lanes.down(codes)), limit=limit)
            part = one.request.residual[first * lanes.block_elements : last * lanes.block_elements]
            part.copy_(left.view(-1)[: part.numel()])

    def _unpack(self, one: StagedSum, stream: Stream) -> None:
        one.ready.block_current_stream()
        staging, summed = one.staging, 0
        divisor = None
        if one.request.average:
            divisor = torch.full((1,), float(one.lanes.workers), dtype=torch.float32, device=self._device)
        while summed < staging.blocks:
            ready = self._progress(one, summed=summed)[1]
            for first, last in one.portions(summed, ready):
                self._unpack_portion(one, first, last, divisor)
            summed = ready
        self._transport.wait(one.ticket)
        one.set_floats(*self._transport.special_sums(staging))
        if one.request.residual is not None:
            one.set_outlier_residuals(one.request.residual, *self._transport.outlier_residuals(staging))
        if one.request.deliver is not None:
            one.request.deliver()
        end = stream.record()
        with self._lock:
            self._ended.extend((memory, end) for memory in one.request.memories)
        one.end(end)

    def _unpack_portion(self, one: StagedSum, first: int, last: int, divisor: torch.Tensor | None) -> None:
        staging, lanes = one.staging, one.lanes
        packets = one.place(staging.datagrams[first:last]).to(self._device, non_blocking=True)
        words = packets.view(last - first, staging.stride)[:, staging.offset :]
        down = one.column(_DOWN, first, lanes.down(staging.agreed[first:last]))
        part = one.flat[first * lanes.block_elements : last * lanes.block_elements]
        if part.numel() == (last - first) * lanes.block_elements:
            sums(words, down, lanes, divisor, out=part.view(-1, lanes.block_elements))
        else:
            part.copy_(sums(words, down, lanes, divisor).view(-1)[: part.numel()])

    def _progress(
        self, one: StagedSum, known: int | None = None, summed: int | None = None
    ) -> tuple[int, int]:
        """Wait until the exponents of more than `known` blocks are agreed, or more than `summed` blocks are summed."""
        most = one.staging.blocks
        found = self._transport.progress(
            one.staging, most if known is None else known, most if summed is None else summed
        )
        assert found is not None  # there is no timeout
        return found


class _Stage:
    def __init__(self, step: Callable[[StagedSum, Stream], None], stream: Stream) -> None:
        self.step = step
        self.stream = stream
        self.sums: queue.SimpleQueue[StagedSum | None] = queue.SimpleQueue()


class Devices:
    """The staged sums of one job, on any devices. Not thread-safe.

    Args:
        fail: called with a reason if a device fails; it must fail the job.
    """

    def __init__(self, transport: Transport, workers: int, words: int, fail: Callable[[str], None]) -> None:
        self._transport = transport
        self._workers = workers
        self._words = words
        self._fail = fail
        self._stages: dict[torch.device, Stages] = {}

    def prepare(self, request: SumRequest, *, lane_bits: LaneBits, seed: int | None) -> StagedSum:
        """A sum after the current stream's queued work. When the sum has been queued, `request.deliver` queues further
        work on it.

        Args:
            seed: of stochastic rounding; None rounds to nearest.

        Raises:
            ConfigurationError: a CUDA graph is being captured.
            torch.OutOfMemoryError, RuntimeError: the allocation failed.
        """
        device = request.flat.device
        ready = record_current(device)
        if device not in self._stages:
            self._stages[device] = Stages(self._transport, device, self._fail)
        return StagedSum(request, ready, Lanes(lane_bits, self._workers, self._words), seed)

    def submit(self, one: StagedSum, context: int) -> int:
        """Submit a sum; return its ticket. Raises EngineError if the group has failed."""
        average = one.request.average
        one.ticket = self._transport.submit_staged(one.staging, average=average, context=context)
        self._stages[one.flat.device].start(one)
        return one.ticket

    def block_current_stream(self, memory: range) -> None:
        """See `Stages.block_current_stream`."""
        for stages in self._stages.values():
            stages.block_current_stream(memory)

    def close(self) -> None:
        """End all stages. Call it after the transport is closed."""
        for stages in self._stages.values():
            stages.close()
