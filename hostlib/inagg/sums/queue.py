# SPDX-License-Identifier: Apache-2.0
"""The sums of one rank in one job: submitted in order, waited for, delivered once.

A thread of the core handles the packets. Whoever waits for a sum waits for that thread, without the GIL; the first to
notice that the sum is done delivers it.
"""

import threading
from collections.abc import Sequence
from typing import Protocol

import torch

from inagg._core import EngineError, Transport
from inagg.counters import TalliedCall
from inagg.device.staged import Devices, StagedSum
from inagg.errors import InaggError
from inagg.options import Options
from inagg.sums.completers import Completers
from inagg.sums.journal import Journal
from inagg.sums.pending import Pending
from inagg.sums.reduction import Callback, Reduction, memory_of, written_memory_of

_MASK_64 = (1 << 64) - 1
_NEVER_S = 1e9


class Job(Protocol):
    """The job that a queue's sums belong to: `inagg.membership.session.Session`."""

    @property
    def id(self) -> int: ...

    @property
    def rank(self) -> int: ...

    def refuse_forked(self) -> None:
        """Raises JobError in a forked child, which has none of the threads that do sums."""

    def fail(self, reason: str) -> None:
        """End the job for all ranks."""

    def overrun(self, elements: int, timeout_s: float) -> None:
        """End the job for all ranks: a sum was not done within its timeout."""

    def translate(self, error: Exception) -> InaggError:
        """What the core or a device raised, as the error class that says whose fault it is."""


class SumQueue:
    """Any thread may call; all ranks must submit the same all-reduces in the same order.

    Locks are taken in this order: `_submitting`, that of a Reduction, `_lock`.

    Args:
        workers: the ranks of the job.
        words: 256-byte words in a packet.
        journal: receives what is submitted.
    """

    def __init__(self, job: Job, transport: Transport, *, workers: int, words: int, journal: Journal) -> None:
        self._job = job
        self._transport = transport
        self._journal = journal
        self._completers = Completers(transport, job.id)
        # Held over a submission, so that the core's order is the callers'; guards the next two.
        self._submitting = threading.Lock()
        self._devices = Devices(transport, workers, words, job.fail)
        self._submitted = 0
        self._lock = threading.Lock()  # guards what follows
        self._pending = Pending()  # not finished, as far as this side has noticed

    def submit(
        self,
        flat: torch.Tensor,
        *,
        options: Options,
        call: str,
        average: bool = False,
        touches: torch.Tensor | None = None,
        deliver: Callback | None = None,
        residual: torch.Tensor | None = None,
        timeout_s: float = _NEVER_S,
        tallied: TalliedCall | None = None,
    ) -> Reduction:
        """Queue the all-reduce of `flat` (float32, contiguous, one-dimensional, on any device), in place.

        While another one that touches the same memory is under way this waits for it (as `settle` does, which is for
        whoever makes `flat` of something else): the core works on several at once, and a program that issues two in a
        row means one after the other. After an error the values of `flat` are unspecified.

        Args:
            call: what all ranks must agree on (`calls.describe`).
            touches: the tensor that holds the result in the end, if that is not `flat`; `deliver` brings it there,
                called once, on the thread of whoever notices first that the sum is done; on a device it is queued.
            residual: as `flat`; receives what this rank's lanes leave out of it.
            timeout_s: seconds after which the job fails if this is not done.
            tallied: ends when this and the other sums of the call are done.

        Raises:
            ConfigurationError: elements of `touches` share memory, so there is no sum in place.
            InaggError: the job has failed already. In both cases the tensors are untouched.
        """
        self._job.refuse_forked()
        memory = written_memory_of(flat if touches is None else touches)
        with self._submitting:
            self._collect(memory)
            seed = self._rounding_seed(options)
            staged: StagedSum | None = None
            if flat.device.type != "cpu" or options.stage_cpu:
                staged = self._devices.prepare(
                    flat,
                    memory,
                    lane_bits=options.lane_bits,
                    average=average,
                    seed=seed,
                    residual=residual,
                    deliver=deliver,
                    result=touches,
                )
            context = self._journal.begin(call)
            try:
                if staged is not None:
                    ticket = self._devices.submit(staged, context)
                else:
                    ticket = self._transport.submit(
                        flat,
                        lane_bits=options.lane_bits,
                        average=average,
                        stochastic=seed,
                        context=context,
                        residual=residual,
                    )
            except EngineError as error:
                raise self._job.translate(error) from error
            self._submitted += 1
            reduction = Reduction(
                self,
                ticket,
                flat,
                memory,
                timeout_s=timeout_s,
                deliver=deliver,
                staged=staged,
                tallied=tallied,
            )
            with self._lock:
                self._pending.add(reduction)
        return reduction

    def settle(self, tensors: Sequence[torch.Tensor]) -> None:
        """Wait for sums under way that bring their results to the memory of `tensors`."""
        self._job.refuse_forked()
        for memory in map(memory_of, tensors):
            with self._submitting:
                self._collect(memory)

    def wait(self, reduction: Reduction, timeout_s: float | None) -> bool:
        """See `Reduction.wait`."""
        if reduction.finished:
            return True
        error = None
        try:
            if not self._transport.wait(reduction.ticket, timeout_s):
                return False
        except EngineError as problem:
            error = self._job.translate(problem)
        except BaseException:  # a signal's, such as Ctrl-C: whoever waited may never come back
            reduction.deliver_unasked()
            raise
        reduction.finish(error, translate=self._job.translate, forget=lambda: self._forget(reduction))
        return True

    def watch(self, reduction: Reduction, callback: Callback) -> None:
        """See `Reduction.on_finished`."""
        self._completers.watch(reduction, callback)

    def overrun(self, reduction: Reduction) -> None:
        """The sum was not done within its timeout: the job fails."""
        self._job.overrun(reduction.flat.numel(), reduction.timeout_s)

    def drain(self, patience_s: float) -> int:
        """Wait for the sums under way as long as results keep coming, `patience_s` apart at most.

        Returns how many are left.
        """
        while (oldest := self._oldest()) is not None:
            received = self._transport.stats()["packets_received"]
            if not self.wait(oldest, patience_s) and self._transport.stats()["packets_received"] == received:
                return len(self)
        return 0

    def close(self) -> None:
        """When the transport is closed: what is outstanding fails, and every callback is made before this returns."""
        with self._submitting:
            self._devices.close()
        self._completers.join()

    def __len__(self) -> int:
        """Sums under way, as far as anybody has noticed."""
        with self._lock:
            return len(self._pending)

    def threads(self) -> Sequence[threading.Thread]:
        """Those that call back."""
        return self._completers.threads()

    def _collect(self, memory: range) -> None:
        """Wait for all-reduces of this memory (on a GPU, the current stream does), and forget those at the front that
        are done."""
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

    def _rounding_seed(self, options: Options) -> int | None:
        """One of its own for each rank and all-reduce: steps of a Weyl sequence (the constants are odd)."""
        if options.rounding == "nearest":
            return None
        step = self._job.rank * 0x9E3779B97F4A7C15 + self._submitted * 0xBF58476D1CE4E5B9
        return (options.seed + step) & _MASK_64
