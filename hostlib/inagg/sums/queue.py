# SPDX-License-Identifier: Apache-2.0
"""The sums of one rank in one job: submitted in order, waited for, delivered once.

A thread of the core handles the packets. A thread that waits for a sum waits for the core's thread, without the GIL.
The first thread that notices the end of a sum delivers its result.
"""

import threading
from collections.abc import Sequence
from typing import Protocol

import torch

from inagg._core import EngineError, Transport, block_elements
from inagg.counters import TalliedCall
from inagg.device.sums import DeviceSum, SumRequest
from inagg.device.threads import Devices
from inagg.device.ways import way_of
from inagg.errors import InaggError
from inagg.options import LaneBits, Options
from inagg.sums.completers import Completers
from inagg.sums.journal import Journal
from inagg.sums.pending import Pending
from inagg.sums.reduction import Callback, Reduction, check_writable, memories_of

_MASK_64 = (1 << 64) - 1
_NEVER_S = 1e9


class Job(Protocol):
    """The job that a queue's sums belong to: `inagg.membership.session.Session`."""

    @property
    def id(self) -> int: ...

    @property
    def rank(self) -> int: ...

    def refuse_forked(self) -> None:
        """Raises JobError in a forked child, because the threads that do sums do not exist there."""

    def fail(self, reason: str) -> None:
        """End the job for all ranks."""

    def overrun(self, elements: int, timeout_s: float) -> None:
        """End the job for all ranks: a sum was not done within its timeout."""

    def translate(self, error: Exception) -> InaggError:
        """Make an InaggError, which says whose fault it is, from what the core or a device raised."""


class SumQueue:
    """Any thread may call it. All ranks must submit the same all-reduces in the same order.

    A thread takes locks in this order: `_submitting`, the lock of a `Reduction`, `_lock`.

    Args:
        workers: the ranks of the job.
        words, slots: 256-byte words in a packet, and slots, of the job.
        journal: notes each call.
    """

    def __init__(
        self, job: Job, transport: Transport, *, workers: int, words: int, slots: int, journal: Journal
    ) -> None:
        self._job = job
        self._transport = transport
        self._journal = journal
        self._completers = Completers(transport, job.id)
        # Held during a submission, so that the core gets sums in the order of the journal; guards the next two.
        self._submitting = threading.Lock()
        self._devices = Devices(transport, workers=workers, words=words, slots=slots, fail=job.fail)
        self._words = words
        self._submitted = 0
        self._lock = threading.Lock()  # guards what follows
        self._pending = Pending()  # sums whose end nobody has noticed

    def submit(
        self,
        flat: torch.Tensor,
        *,
        options: Options,
        call: str,
        average: bool = False,
        touches: Sequence[torch.Tensor] | None = None,
        deliver: Callback | None = None,
        residual: torch.Tensor | None = None,
        timeout_s: float = _NEVER_S,
        tallied: TalliedCall | None = None,
    ) -> Reduction:
        """Queue the all-reduce of `flat`, in place: contiguous, one-dimensional, float32, or half floats for the core.

        The core works on several sums at once. Two sums in the same memory must be done one after the other, so this
        waits for sums under way in that memory. After an error the values of `flat` are unspecified.

        Args:
            call: what all ranks must agree on (`calls.describe`).
            touches: the tensors that hold the result in the end; None: `flat`.
            deliver: brings the result to `touches`. Called once, on the thread that first notices that the sum is done;
                for a device, when the sum has been queued there.
            residual: a tensor like `flat` that receives the residual; None: it is not computed.
            timeout_s: seconds after which an unfinished sum ends the job.
            tallied: ends with the last sum of the call.

        Raises:
            ConfigurationError: a tensor has no memory, or its elements share memory. The tensors are unchanged.
            InaggError: the job has failed. The tensors are unchanged.
        """
        self._job.refuse_forked()
        results = (flat,) if touches is None else tuple(touches)
        check_writable((flat, *results))
        request = SumRequest(
            flat=flat,
            memories=memories_of(results),
            average=average,
            residual=residual,
            deliver=deliver,
            results=results,
        )
        with self._submitting:
            self._collect(request.memories)
            ticket, on_device = self._hand_over(request, options, call)
            self._submitted += 1
            reduction = Reduction(
                self, ticket, request, timeout_s=timeout_s, on_device=on_device, tallied=tallied
            )
            with self._lock:
                self._pending.add(reduction)
        return reduction

    def _hand_over(self, request: SumRequest, options: Options, call: str) -> tuple[int, DeviceSum | None]:
        """Note the call, and hand the sum to the core. Returns its ticket, and the device's part if there is one."""
        seed = None if options.rounding == "nearest" else self._rounding_seed(options.seed)
        on_device: DeviceSum | None = None
        way = way_of(request.flat, options)
        if way is not None:
            if request.flat.dtype != torch.float32:
                way = "host"  # which was the way of each tensor in it
            on_device = self._devices.prepare(request, way, lane_bits=options.lane_bits, seed=seed)
        context = self._journal.begin(call)
        try:
            if on_device is not None:
                return self._devices.submit(on_device, context), on_device
            ticket = self._transport.submit(
                request.flat,
                lane_bits=options.lane_bits,
                average=request.average,
                stochastic=seed,
                context=context,
                residual=request.residual,
            )
        except EngineError as error:
            raise self._job.translate(error) from error
        return ticket, None

    def block_elements(self, lane_bits: LaneBits) -> int:
        """Elements in a packet's lanes, which share an exponent."""
        return block_elements(self._words, lane_bits=lane_bits)

    def settle(self, tensors: Sequence[torch.Tensor]) -> None:
        """Wait for sums under way whose results go to the memory of `tensors`."""
        self._job.refuse_forked()
        with self._submitting:
            self._collect(memories_of(tensors))

    def wait(self, reduction: Reduction, timeout_s: float | None) -> bool:
        """See `Reduction.wait`."""
        if reduction.finished:
            return True
        error = None
        try:
            try:
                if not self._transport.wait(reduction.ticket, timeout_s):
                    return False
            except EngineError as problem:
                error = self._job.translate(problem)
            reduction.finish(error, translate=self._job.translate, forget=lambda: self._forget(reduction))
        except BaseException:  # such as Ctrl-C: the caller may never wait again
            reduction.deliver_unasked()
            raise
        return True

    def watch(self, reduction: Reduction, callback: Callback) -> None:
        """See `Reduction.on_finished`."""
        self._completers.watch(reduction, callback)

    def overrun(self, reduction: Reduction) -> None:
        """End the job, because the sum was not done within its timeout."""
        self._job.overrun(reduction.flat.numel(), reduction.timeout_s)

    def drain(self, patience_s: float) -> int:
        """Wait for the sums under way as long as results arrive, at most `patience_s` apart.

        Returns how many sums are not done.
        """
        while (oldest := self._oldest()) is not None:
            received = self._transport.stats()["packets_received"]
            if not self.wait(oldest, patience_s) and self._transport.stats()["packets_received"] == received:
                return len(self)
        return 0

    def close(self) -> None:
        """End the threads of a closed transport. Unfinished sums fail. On return all callbacks have been made."""
        with self._submitting:
            self._devices.close()
        self._completers.join()

    def __len__(self) -> int:
        """How many sums are under way, except those whose end somebody has noticed."""
        with self._lock:
            return len(self._pending)

    def threads(self) -> Sequence[threading.Thread]:
        """The threads that call back."""
        return self._completers.threads()

    def _collect(self, memories: Sequence[range]) -> None:
        """Wait for sums in these memories, and forget the oldest sums that are done.

        For sums on a GPU, the current stream waits.
        """
        for memory in memories:
            with self._lock:
                overlapping = self._pending.overlapping(memory)
            for other in overlapping:
                other.wait(None)
            self._devices.block_current_stream(memory)
        while (oldest := self._oldest()) is not None and self.wait(oldest, 0.0):
            pass

    def _oldest(self) -> Reduction | None:
        with self._lock:
            return self._pending.first()

    def _forget(self, reduction: Reduction) -> None:
        with self._lock:
            self._pending.remove(reduction)

    def _rounding_seed(self, seed: int) -> int:
        """A different seed for each rank and sum: steps of a Weyl sequence (the constants are odd)."""
        step = self._job.rank * 0x9E3779B97F4A7C15 + self._submitted * 0xBF58476D1CE4E5B9
        return (seed + step) & _MASK_64
