"""A rank's membership of one job: the transport that sums, the heartbeat, leaving. Joining is `membership.join`'s.

The packets are handled by a thread of the core, and whoever waits for a sum waits for that thread, without the GIL.
Threads of Python are the heartbeat and the completers, which call back those who asked for it.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from inagg import _core
from inagg.device.staged import Devices
from inagg.errors import (
    CollectiveTimeoutError,
    InaggError,
    IntegrityError,
    JobError,
    MismatchError,
    NetworkTimeoutError,
)
from inagg.membership.control import ControlClient, HeartbeatThread, JobStatus
from inagg.membership.heartbeat import Failure
from inagg.membership.journal import Journal
from inagg.membership.mtu_probe import SMALL_BYTES, full_bytes, narrow_ways
from inagg.membership.presence import Presence
from inagg.options import Options
from inagg.sums.completers import Completers
from inagg.sums.pending import Pending
from inagg.sums.reduction import Callback, Reduction, memory_of, written_memory_of

_log = logging.getLogger(__name__)

_MASK_64 = (1 << 64) - 1
_NEVER_S = 1e9
_FORKED = "this process was forked from a member of the job, and is none: what it calls would never end"
_DRAIN_S = 3.0  # without a packet, after which a rank that leaves gives up sums under way
_FULL_SIZE_S = 6.0  # once small packets pass, for one of full size: eight sendings
_GOODBYE_S = 1.0  # to say why; without a word, the end of the rank's presence ends the job
_LOOK_S = 0.1  # between looks at whether they have


class _Overdue(NamedTuple):
    elements: int
    timeout_s: float


class Session:
    """One rank in one running job.

    `submit` may be called from any thread; all ranks must submit the same all-reduces in the same order. on_failure is
    called, on any thread, when the job has failed. presence: closed when this is.
    """

    def __init__(
        self,
        client: ControlClient,
        status: JobStatus,
        rank: int,
        transport: _core.Transport,
        on_failure: Callback = lambda: None,
        presence: Presence | None = None,
    ) -> None:
        self.job = status.id
        self.rank = rank
        self._client = client
        self._policy = status.policy
        self._words = status.words
        self._transport = transport
        self._presence = presence
        self.link_rate: float | None = None  # of the interface, in bits a second
        self.journal = Journal()
        self._on_failure = on_failure
        self._failure: Failure | None = None  # as the heartbeat learnt it
        self._joined_by = os.getpid()
        self._closed = False
        self._given_up: str | None = None  # why this rank has ended the job, if it has
        self._overdue: _Overdue | None = None
        self._submitting = threading.Lock()  # held over a submission: the core's order is the callers'
        self._devices = Devices(transport, status.workers, status.words, self.fail)  # guarded by the same
        self.completers = Completers(transport, self.job)
        self._lock = threading.Lock()  # guards what follows
        self._pending = Pending()  # not finished, as far as this side has noticed
        self._submitted = 0
        self._waited_at_first = (0, 0.0)  # of the job's own sum
        self._heartbeat = HeartbeatThread(
            client,
            self.job,
            rank,
            self._policy.heartbeat_interval_s,
            self._policy.heartbeat_timeout_s,
            self._on_job_failure,
            self.journal,
            self._waited,
        )
        self._heartbeat.start()

    def try_path(self, timeout_s: float, check: Callback = lambda: None) -> None:
        """Do the first sum of the job, whose data take one packet of full size (docs/protocol.md, 7). A packet that is
        lost is sent again, as ever. check: called now and then; what it raises ends the wait.

        Raises:
            NetworkTimeoutError: it has not come back, or small packets have not within `timeout_s`.
            InaggError: the job has failed.
        """
        start, end = time.monotonic(), time.monotonic() + timeout_s
        small_passed = False
        try:
            ticket = self._transport.submit(np.zeros(1, dtype=np.float32))
            while not self._transport.wait(ticket, _LOOK_S):
                check()
                now = time.monotonic()
                if not small_passed and self._transport.stats()["packets_received"] > 0:
                    small_passed, start, end = True, now, now + _FULL_SIZE_S
                if now >= end:
                    raise self._silence(int(small_passed), round(now - start, 1), small_passed)
        except _core.EngineError as error:
            raise self._translate(error) from error
        self._waited_at_first = self._waited()

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
    ) -> Reduction:
        """Queue the all-reduce of `flat` (float32, contiguous, one-dimensional, on any device), in place.

        While another one that touches the same memory is under way this waits for it (as `settle` does, which is for
        whoever makes `flat` of something else): the core works on several at once, and a program that issues two in a
        row means one after the other. After an error the values of `flat` are unspecified.

        Args:
            call: what all ranks must agree on (`_calls.describe`).
            touches: the tensor that holds the result in the end, if that is not `flat`; `deliver` brings it there,
                called once, on the thread of whoever notices first that the sum is done; on a device it is queued.
            residual: as `flat`; receives what this rank's lanes leave out of it.
            timeout_s: seconds after which the job fails if this is not done.

        Raises:
            ConfigurationError: elements of `touches` share memory, so there is no sum in place.
            InaggError: the job has failed already. In both cases the tensors are untouched.
        """
        self._refuse_forked()
        memory = written_memory_of(flat if touches is None else touches)
        with self._submitting:
            self._collect(memory)
            seed = self._rounding_seed(options)
            staged = None
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
            reduction = Reduction(self, flat, memory, deliver, timeout_s, staged)
            context = self.journal.begin(call)
            try:
                if staged is not None:
                    reduction.ticket = self._devices.submit(staged, context)
                else:
                    reduction.ticket = self._transport.submit(
                        flat,
                        lane_bits=options.lane_bits,
                        average=average,
                        stochastic=seed,
                        context=context,
                        residual=residual,
                    )
            except _core.EngineError as error:
                raise self._translate(error) from error
            with self._lock:
                self._pending.add(reduction)
                self._submitted += 1
        return reduction

    def settle(self, tensors: Sequence[torch.Tensor]) -> None:
        """Wait for sums under way that bring their results to the memory of `tensors`."""
        self._refuse_forked()
        for memory in map(memory_of, tensors):
            with self._submitting:
                self._collect(memory)

    def _collect(self, memory: range) -> None:
        """Wait for all-reduces of this memory (on a GPU, the current stream does), and forget those at the front that
        are done."""
        with self._lock:
            overlapping = self._pending.overlapping(memory)
        for other in overlapping:
            other.wait(None)
        self._devices.hold_back(memory)
        while (oldest := self._oldest()) is not None and self.wait(oldest, 0.0):
            pass

    def _oldest(self) -> Reduction | None:
        with self._lock:
            return self._pending.first()

    def _rounding_seed(self, options: Options) -> int | None:
        """One of its own for each rank and all-reduce: steps of a Weyl sequence (the constants are odd)."""
        if options.rounding == "nearest":
            return None
        step = self.rank * 0x9E3779B97F4A7C15 + self._submitted * 0xBF58476D1CE4E5B9
        return (options.seed + step) & _MASK_64

    def wait(self, reduction: Reduction, timeout_s: float | None) -> bool:
        """See `Reduction.wait`."""
        if reduction.finished:
            return True
        problem = None
        try:
            if not self._transport.wait(reduction.ticket, timeout_s):
                return False
        except _core.EngineError as error:
            problem = self._translate(error)
        except BaseException:  # a signal's, such as Ctrl-C: whoever waited may never come back
            reduction.deliver_unasked()
            raise
        self._finish(reduction, problem)
        return True

    def stats(self) -> dict[str, Any]:
        """Counters of the transport (packets, bytes, retransmits, RTT...), with the job and rank they belong to, and
        what all ranks have told, with their last heartbeats, of their waiting for one another."""
        waits = {
            rank: {"sums": sums, "waited_s": waited_s}
            for rank, (sums, waited_s) in sorted(self._heartbeat.waits.items())
        }
        return {
            "job": self.job,
            "rank": self.rank,
            "link_rate": self.link_rate,
            **self._transport.stats(),
            "waits": waits,
        }

    def _waited(self) -> tuple[int, float]:
        """Sums done, and seconds waited for other ranks to begin them."""
        stats, (sums, waited_s) = self._transport.stats(), self._waited_at_first
        return stats["collectives_completed"] - sums, stats["waited_s"] - waited_s

    def leave(self, cause: str | None = None, since: float = 0.0) -> None:
        """Leave the job, and close. Sums under way end first; if no more comes of them, the job fails.

        cause: what has ended this rank's program early, at the time `since`. The job then fails, but not before others
        can have fetched what has been summed already, as when a process dies.
        """
        if self._forked:
            return  # the member goes on
        if self.failure is None:
            if cause is not None:
                time.sleep(max(0.0, since + self._policy.heartbeat_interval_s - time.monotonic()))
            elif (left := self._drain()) > 0:
                cause = f"left while {left} of its sums {'was' if left == 1 else 'were'} not done"
        if cause is not None:
            self.fail(cause)
        self.close()

    def _drain(self) -> int:
        """Wait for the sums under way, as long as results keep coming. Returns how many are left."""
        while (oldest := self._oldest()) is not None:
            received = self._transport.stats()["packets_received"]
            if not self.wait(oldest, _DRAIN_S) and self._transport.stats()["packets_received"] == received:
                with self._lock:
                    return len(self._pending)
        return 0

    def close(self) -> None:
        """Leave the job at once. What is still outstanding fails. Closing twice changes nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._heartbeat.stop()
            # Where others have left, the job goes on for those who have not noticed: they should not hear that this
            # one has died.
            goes_on = self._failure is None or self._failure.lost_ranks
            if goes_on and self._given_up is None:
                self._client.leave(self.job, self.rank)
        except InaggError as error:
            _log.warning("job %d, rank %d could not say goodbye: %s", self.job, self.rank, error)
        finally:
            self._transport.close()
            with self._submitting:
                self._devices.close()
            self.completers.join()
            if self._presence is not None:
                self._presence.close()
            self._client.close()
            # The group's: when nothing else refers to it any more, it shall end, and its connections with it.
            self._on_failure = lambda: None

    @property
    def failure(self) -> InaggError | None:
        """Why the job has failed; None if it has not, as far as this rank knows. A child of the rank is no member."""
        if self._forked:
            return JobError(_FORKED, job=self.job, rank=self.rank)
        if self._failure is not None:
            return self._failure.error(self.job, self.rank, None)
        if self._overdue is not None:
            return self._timeout(self._overdue, None)
        return None if self._given_up is None else JobError(self._given_up, job=self.job, rank=self.rank)

    def diagnose(self) -> InaggError | None:
        """`failure`, as far as anybody knows. For whoever saw something go wrong."""
        if self.failure is None and not self._closed:
            self._heartbeat.confer()
        return self.failure

    @property
    def _forked(self) -> bool:
        """In a child there are none of the threads that do sums, and locks may be held for ever."""
        return os.getpid() != self._joined_by

    def _refuse_forked(self) -> None:
        if self._forked:
            raise JobError(_FORKED, job=self.job, rank=self.rank)

    def _on_job_failure(self, failure: Failure) -> None:
        self._failure = failure
        self._transport.fail(failure.reason)
        self._on_failure()

    def _finish(self, reduction: Reduction, problem: InaggError | None) -> None:
        with reduction.finishing:
            if reduction.finished:
                return
            if problem is None and (trouble := reduction.deliver()) is not None:
                problem = JobError(f"{type(trouble).__name__}: {trouble}", job=self.job, rank=self.rank)
            if problem is None and reduction.tallied is not None:
                reduction.tallied.end()
            reduction.error = problem
            with self._lock:  # before others see it finished, and put a sum in the same memory
                self._pending.remove(reduction)
            reduction.finished = True

    def give_up(self, reduction: Reduction) -> None:
        """The job fails, for all ranks: `reduction` has not been done in its time."""
        elements, timeout_s = reduction.flat.numel(), reduction.timeout_s
        self._overdue = _Overdue(elements, timeout_s)
        self.fail(f"{elements} elements were not summed within {timeout_s:g} s")

    def fail(self, reason: str) -> None:
        """End the job, for all ranks: what is outstanding ends in an error."""
        with self._lock:
            if self._closed or self._given_up is not None or self._failure is not None:
                return
            self._given_up = reason
        self._transport.fail(reason)
        self._heartbeat.stop()
        give_up_on(self._client, self.job, self.rank, reason)
        self._on_failure()  # after the others have been told: what breaks there then has its reason

    def _translate(self, error: _core.EngineError) -> InaggError:
        """What the core reports, as the error class that says whose fault it is."""
        job, rank, chunk = self.job, self.rank, error.chunk
        if self._overdue is not None and error.code == "failed":
            return self._timeout(self._overdue, chunk)
        if error.code in ("checksum", "kind_mismatch") and self._failure is None and not self._closed:
            # Other ranks know what they have called; the controller finds out, within a few of their heartbeats.
            self._heartbeat.confer()
        if self._failure is not None and (error.code != "checksum" or self._failure.mismatch is not None):
            return self._failure.error(job, rank, chunk)
        if chunk is not None:
            if error.code == "checksum":
                return IntegrityError(chunk, job=job, rank=rank)
            if error.code == "kind_mismatch":
                return MismatchError(chunk, job=job, rank=rank, detail=self._own_call())
            if error.code == "give_up":
                return self._silence(chunk, self._policy.give_up_s)
        return JobError(error.message, job=job, rank=rank, chunk=chunk)

    def _silence(self, chunk: int, waited_s: float, small_passed: bool = False) -> NetworkTimeoutError:
        return NetworkTimeoutError(
            chunk,
            waited_s=waited_s,
            packet_bytes=full_bytes(self._words),
            passed_bytes=SMALL_BYTES if small_passed else None,
            narrow=narrow_ways(self._client, self.job, self.rank) if small_passed else None,
            job=self.job,
            rank=self.rank,
        )

    def _timeout(self, overdue: _Overdue, chunk: int | None) -> CollectiveTimeoutError:
        return CollectiveTimeoutError(
            overdue.elements, timeout_s=overdue.timeout_s, job=self.job, rank=self.rank, chunk=chunk
        )

    def _own_call(self) -> str:
        number, text = self.journal.last()
        return f"the ranks disagree about a collective; the last one of this rank is number {number}, {text}"


def give_up_on(client: ControlClient, job: int, rank: int, reason: str) -> None:
    """Tell the controller, so that the other ranks do not wait for this one."""
    try:
        client.leave(job, rank, error=reason, timeout_s=_GOODBYE_S)
    except InaggError as complaint:
        _log.warning("job %d, rank %d could not say goodbye: %s", job, rank, complaint)
