# SPDX-License-Identifier: Apache-2.0
"""The threads that do sums of device tensors.

A sum takes three steps (`inagg.device.sums`). For each group and device a step has its own thread and CUDA stream, so
that one sum is scanned while another is packed and a third unpacked, and copies run in both directions:

    scan     copies the elements to the host; or finds the exponents of all blocks
    pack     makes lanes and checksums of blocks whose exponent is agreed, to be sent
    unpack   copies the sums to the device; or makes floats of the lanes of sums

A thread waits for an event of its stream or for the core, which also reports failures.
"""

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch

from inagg._core import EngineError, Transport
from inagg.device.numerics import Lanes
from inagg.device.streams import Event, Stream, new_stream, on_device, record_current
from inagg.device.sums import CopiedSum, DeviceSum, StagedSum, SumMemory, SumRequest
from inagg.device.ways import Way, portions_of
from inagg.options import LaneBits


class Stages:
    """The three steps of one device, for the sums of one job.

    Args:
        fail: called with a reason if the device fails; it must fail the job.
    """

    def __init__(self, device: torch.device, fail: Callable[[str], None]) -> None:
        self._device = device
        self._fail = fail
        self._lock = threading.Lock()
        # Of sums that the device may not have finished: the results, and pinned memory that it may access. Guarded by
        # _lock.
        self._ended: deque[tuple[Sequence[range], Event, Sequence[torch.Tensor]]] = deque()
        self._stages = [
            _Stage("scan", lambda one, stream: one.scan(stream), new_stream(device)),
            _Stage("pack", lambda one, stream: one.pack(stream), new_stream(device)),
            _Stage("unpack", self._unpack, new_stream(device)),
        ]
        self._threads = [
            threading.Thread(
                target=self._run, args=(stage,), name=f"inagg-{stage.name}-{device}", daemon=True
            )
            for stage in self._stages
        ]
        for thread in self._threads:
            thread.start()

    def start(self, one: DeviceSum) -> None:
        """Start the steps of a sum that has been submitted. Call it in the order of submissions."""
        for stage in self._stages:
            if stage.name == "pack" and not one.packs:
                continue
            for tensor in one.touched:
                stage.stream.keep(tensor)
            stage.sums.put(one)

    def block_current_stream(self, memory: range) -> None:
        """Make later work of this thread's current stream wait for completed sums whose results overlap `memory`."""
        with self._lock:
            while self._ended and self._ended[0][1].query():
                self._ended.popleft()
            for outputs, end, _ in self._ended:
                for output in outputs:
                    if max(memory.start, output.start) < min(memory.stop, output.stop):
                        end.block_current_stream()

    def close(self) -> None:
        """End the threads. Call it after the transport is closed, which ends the sums in progress."""
        for stage in self._stages:
            stage.sums.put(None)
        for thread in self._threads:
            thread.join()
        with self._lock:
            while self._ended:
                with contextlib.suppress(RuntimeError):  # a device that has failed accesses nothing any more
                    self._ended[0][1].synchronize()
                self._ended.popleft()

    def _run(self, stage: "_Stage") -> None:
        with on_device(self._device):
            while True:
                one = stage.sums.get()
                if one is None:
                    return
                self._step(stage, one)
                del one  # frees its tensors before the wait for the next sum

    def _step(self, stage: "_Stage", one: DeviceSum) -> None:
        problem: Exception | None = None
        try:
            # Inference mode, because the tensors may have been made in it.
            with torch.inference_mode(), stage.stream.current():
                stage.step(one, stage.stream)
            return
        except EngineError:
            pass  # the waiting thread gets this error from the core
        except Exception as error:
            # Any error of torch, such as OutOfMemoryError: the other ranks cannot complete the sum without this one.
            problem = error.with_traceback(None)  # which has references to the sum
        if problem is not None:
            self._fail(f"a sum on {self._device}: {type(problem).__name__}: {problem}")
        with contextlib.suppress(RuntimeError):
            stage.stream.record().synchronize()  # before pinned memory is let go of
        one.end(None, problem)

    def _unpack(self, one: DeviceSum, stream: Stream) -> None:
        one.unpack(stream)
        if one.request.deliver is not None:
            one.request.deliver()
        end = stream.record()
        with self._lock:
            self._ended.append((one.request.memories, end, one.pinned))
        one.end(end)


class _Stage:
    def __init__(self, name: str, step: Callable[[DeviceSum, Stream], None], stream: Stream) -> None:
        self.name = name
        self.step = step
        self.stream = stream
        self.sums: queue.SimpleQueue[DeviceSum | None] = queue.SimpleQueue()


class Devices:
    """The sums of one job on any devices. Not thread-safe.

    Args:
        workers, words, slots: of the job.
        fail: called with a reason if a device fails; it must fail the job.
    """

    def __init__(
        self, transport: Transport, *, workers: int, words: int, slots: int, fail: Callable[[str], None]
    ) -> None:
        self._transport = transport
        self._workers, self._words, self._slots = workers, words, slots
        self._fail = fail
        self._stages: dict[torch.device, Stages] = {}

    def prepare(self, request: SumRequest, way: Way, *, lane_bits: LaneBits, seed: int | None) -> DeviceSum:
        """A sum after the current stream's queued work. When the sum has been queued, `request.deliver` queues further
        work on it.

        Args:
            way: who makes the lanes.
            seed: of stochastic rounding; None rounds to nearest.

        Raises:
            ConfigurationError: a CUDA graph is being captured.
            torch.OutOfMemoryError, RuntimeError: the allocation failed.
        """
        flat = request.flat
        ready = record_current(flat.device)
        if flat.device not in self._stages:
            self._stages[flat.device] = Stages(flat.device, self._fail)
        lanes = Lanes(lane_bits, self._workers, self._words)
        if way == "host":
            return CopiedSum(self._transport, request, ready, lanes, seed)
        memory = SumMemory(flat.numel(), lanes, seed, flat.device)
        return StagedSum(self._transport, request, ready, memory, portions_of(way), self._slots)

    def submit(self, one: DeviceSum, context: int) -> int:
        """Submit a sum; return its ticket. Raises EngineError if the group has failed."""
        one.submit(context)
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
