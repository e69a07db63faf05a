# SPDX-License-Identifier: Apache-2.0
"""Reports a rank's progress to the controller, and learns from the answers whether the job has failed.

The controller sees through another connection (`presence`) that the process lives, so heartbeats may be late.

`HeartbeatMonitor` decides what the answers mean, without a clock or a thread. `RankHeartbeat` supplies the time.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from inagg.errors import (
    ControllerError,
    ControllerRefusedError,
    ControllerUnreachableError,
    InaggError,
    JobError,
    MismatchError,
    PeerLostError,
)
from inagg.membership import beating
from inagg.membership.control import ControlClient
from inagg.sums.journal import Journal, Report
from inagg_contract.documents import Chunks, Heartbeat, Mismatch, Waits
from inagg_contract.ranks import name_ranks

_log = logging.getLogger(__name__)

# Between the beats of a rank that confers.
_CONFER_PAUSE_S = 0.05

# At the end of training, all ranks leave within this time.
_LEAVING_S = 3.0

# How long a rank confers. In less time the controller sees a dead process, and gets a few beats of all ranks.
_CONFER_S = 3.0

# How long stopping waits for a heartbeat under way.
_STOP_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rank cannot go on.

    lost_ranks: the other ranks that are gone; empty if that is not the cause. places: rank -> its host and address, of
    those that are known. mismatch: the cause, if the ranks call different collectives.
    """

    reason: str
    lost_ranks: tuple[int, ...]
    places: Mapping[int, str] = field(default_factory=dict)
    mismatch: Mismatch | None = None

    def at(self, rank: int) -> "Failure":
        """The failure as `rank` sees it, which does not call itself lost."""
        if rank not in self.lost_ranks:
            return self
        others = tuple(lost for lost in self.lost_ranks if lost != rank)
        reason = self.reason if others else f"this rank was given up: {self.reason}"
        return replace(self, reason=reason, lost_ranks=others)

    def error(self, job: int, rank: int, chunk: int | None) -> InaggError:
        """The error that `rank` raises. chunk: its oldest chunk without a result; None without one."""
        if self.mismatch is not None:
            number = self.mismatch.number
            calls = {rank: call.text for call in self.mismatch.calls for rank in call.ranks}
            return MismatchError(
                chunk, job=job, rank=rank, detail=self.reason, collective=number, calls=calls
            )
        if not self.lost_ranks:
            return JobError(self.reason, job=job, rank=rank, chunk=chunk)
        reason = self.reason
        if len(self.lost_ranks) == 1:  # the error names the rank, so the reason need not
            reason = re.sub(rf"^rank {self.lost_ranks[0]}( \([^)]*\))?: ", "", reason)
            if reason == "left":
                reason = "it left: its program has ended, or has destroyed the group"
        return PeerLostError(
            self.lost_ranks, reason=reason, places=self.places, job=job, rank=rank, chunk=chunk
        )


class HeartbeatMonitor:
    """Decides from heartbeats and their answers whether a rank can go on. Time, in seconds, is an argument.

    A failed job is a failure at once. Silence of the controller is a failure after timeout_s, or as soon as a switch of
    the job is down too. Another rank's leaving on purpose is a failure only after a few seconds: at the end of training
    the ranks leave one after another, and this rank may still be fetching its last result, which the switch keeps until
    the last rank has left.
    """

    def __init__(self, *, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._last_answer = now
        self._first_left: float | None = None

    def answered(self, beat: Heartbeat, now: float) -> Failure | None:
        """The controller answered at `now`."""
        self._last_answer = now
        lost_ranks = tuple(lost.rank for lost in beat.lost)
        if beat.state == "failed":
            return Failure(beat.reason or "the job has failed", lost_ranks, mismatch=beat.mismatch)
        if beat.state == "finished":
            return Failure("the job has ended", ())
        if not beat.lost:
            self._first_left = None
            return None
        if self._first_left is None:
            self._first_left = now
        if now - self._first_left < _LEAVING_S:
            return None
        return Failure("; ".join(f"rank {lost.rank}: {lost.reason}" for lost in beat.lost), lost_ranks)

    def refused(self, error: ControllerRefusedError, now: float) -> Failure | None:
        """The controller answered with an error. 401, 403, 404 and 409 mean that this rank is not in that job."""
        if error.status in (401, 403, 404, 409):
            return Failure(error.detail, ())
        return self.silent(error, now)

    def silent(self, error: ControllerError, now: float, down: Sequence[str] = ()) -> Failure | None:
        """A heartbeat has failed by `now`. down: the switches of the job that are down."""
        silence = now - self._last_answer
        if down:
            which = f"the switch {down[0]}, or the way there, is down: it answers no pings"
            if len(down) > 1:
                which = (
                    f"one of the switches {', '.join(down)}, or the way there, is down: they answer no pings"
                )
            return Failure(
                f"{which}, and the controller at {error.url} has not answered for {silence:.1f} s", ()
            )
        if silence < self._timeout_s:
            return None
        return Failure(f"no answer to heartbeats for {silence:.1f} s: {error}", ())


class RankHeartbeat:
    """Beats for one rank until stopped, or until on_failure has been called, which happens at most once.

    `beating` decides when: the ranks that a process has in several jobs beat together.

    Args:
        interval_s: heartbeat_interval_s of the job's policy. timeout_s: for how long no heartbeat may be answered.
        on_failure: called with the failure, on the thread of `beating` or on one that confers. The failure has no lost
            ranks if no other rank is to blame: the controller is gone, or the switch has restarted.
        journal: the collectives that this rank has called; part of each heartbeat.
        waited: returns how many sums this rank has done, and the seconds that it waited for others to begin them; part
            of each heartbeat.
        chunks: returns the chunks of the server in this process, by where they were summed, None if it does not serve
            the job; part of each heartbeat.
        before_beat: called before each regular beat; returns why this rank cannot go on, if it has found out.
        switches_down: called when the controller does not answer a regular beat, once for ranks with equal ones.
            Returns the switches of the job that are down. May take seconds; the event is set when beats should stop.

    `waits` has the same of all ranks, and `chunks` those of all servers, None without servers, from the controller's
    last answer.
    """

    def __init__(
        self,
        client: ControlClient,
        job: int,
        rank: int,
        interval_s: float,
        timeout_s: float,
        on_failure: Callable[[Failure], None],
        journal: Journal,
        waited: Callable[[], tuple[int, float]] = lambda: (0, 0.0),
        chunks: Callable[[], Mapping[str, int] | None] = lambda: None,
        before_beat: Callable[[], Failure | None] = lambda: None,
        switches_down: Callable[[threading.Event], Sequence[str]] = lambda _stopping: (),
    ) -> None:
        self.client = client
        self.job = job
        self.rank = rank
        self.interval_s = interval_s
        self.timeout_s = timeout_s
        self._on_failure = on_failure
        self._journal = journal
        self._waited = waited
        self._chunks = chunks
        self._before_beat = before_beat
        self.switches_down = switches_down
        self.waits: Mapping[int, Waits] = {}
        self.chunks: Chunks | None = None
        self._asked: tuple[int, int] | None = None
        self.stopping = threading.Event()
        self._turn = threading.Lock()  # held while what a regular beat reports is put together
        # Guards the monitor, and decides whether stopping or failing comes first; on_failure runs under it.
        self._lock = threading.RLock()
        self._monitor = HeartbeatMonitor(timeout_s=timeout_s, now=time.monotonic())

    def start(self) -> None:
        """Begin to beat. The first beat is due within an interval."""
        beating.begin(self)

    def stop(self) -> None:
        """Stop beating. on_failure is not called after this has returned. Any thread may call it, repeatedly too.

        It waits at most a second for a beat under way.
        """
        with self._lock:
            self.stopping.set()
        beating.end(self, _STOP_TIMEOUT_S)
        if self._turn.acquire(timeout=_STOP_TIMEOUT_S):
            self._turn.release()

    def prepare(self) -> Report | None:
        """What the regular beat that is due now reports; None if no beat is due any more."""
        with self._turn:
            if self.stopping.is_set():
                return None
            failure = self._before_beat()
            report = self._report(self._asked)
        if failure is not None:
            self._settle(lambda _: failure)
            return None
        return report

    def answered(self, answer: Heartbeat | ControllerRefusedError) -> None:
        """Take the answer to a beat that was sent with those of other ranks."""
        if isinstance(answer, ControllerRefusedError):
            self._settle(partial(self._monitor.refused, answer))
        elif self._note(answer, None):
            self.beat()
        else:
            self._settle(partial(self._monitor.answered, answer))

    def unanswered(self, error: ControllerError, down: Sequence[str]) -> None:
        """Take the failure of a regular beat. down: the switches of the job that are down."""
        self._settle(partial(self._monitor.silent, error, down=down))

    def beat(self) -> None:
        """Send a regular beat alone."""
        self._settle(self._beat(self.switches_down))

    def end(self, error: Exception) -> None:
        """End the job for this rank, because its beats have."""
        _log.error("job %d, rank %d: no more heartbeats", self.job, self.rank, exc_info=error)
        ended = Failure(f"heartbeats ended: {type(error).__name__}: {error}", ())
        self._settle(lambda _: ended)

    def confer(self, timeout_s: float = _CONFER_S) -> None:
        """Beat quickly, on the caller's thread, until the job has failed, this has been stopped, or timeout_s is over.

        For a rank that has seen something fail, when other ranks or the controller may know the reason.
        """
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and not self.stopping.wait(_CONFER_PAUSE_S):
            self._settle(self._beat())
        with self._lock:  # if it has failed just now, on_failure has been called
            return

    def beat_once_more(self, timeout_s: float) -> None:
        """After stop(), report what has been done since the last beat, while this rank is in the job."""
        try:
            self.client.heartbeat(self.job, self.rank, self._report(None), timeout_s=timeout_s)
        except InaggError as error:
            _log.debug("job %d, rank %d: no last heartbeat: %s", self.job, self.rank, error)

    def _report(self, asked: tuple[int, int] | None) -> Report:
        sums, waited_s = self._waited()
        return replace(self._journal.report(asked), sums=sums, waited_s=waited_s, chunks=self._chunks())

    def _note(self, beat: Heartbeat, asked: tuple[int, int] | None) -> bool:
        """Keep what an answer says. Returns whether the controller looks for a difference, and does not ask again: it
        asks for several calls, or for a part of those that it asked for (`asked`)."""
        ask = None if beat.ask is None else (beat.ask.first, beat.ask.last)
        self._asked, self.waits, self.chunks = ask, beat.waits, beat.chunks
        if ask is None or ask == asked:
            return False
        return ask[0] != ask[1] or (asked is not None and asked[0] <= ask[0] and ask[1] <= asked[1])

    def _settle(self, judge: Callable[[float], Failure | None]) -> None:
        with self._lock:
            failure = None if self.stopping.is_set() else judge(time.monotonic())
            if failure is None:
                return
            self.stopping.set()
            beating.end(self, 0.0)
            failure = failure.at(self.rank)
            reason = failure.reason
            if failure.lost_ranks:
                reason = f"lost {name_ranks(failure.lost_ranks, failure.places)}: {reason}"
            _log.error("job %d, rank %d: the job has ended early: %s", self.job, self.rank, reason)
            self._on_failure(failure)

    def _beat(
        self, switches_down: Callable[[threading.Event], Sequence[str]] = lambda _stopping: ()
    ) -> Callable[[float], Failure | None]:
        """Send one beat. Returns a function that gives the outcome to the monitor, with the time.

        switches_down: called if no answer comes.

        If the controller looks for a difference, a second beat answers at once. What the controller asks for next waits
        for the next beat.
        """
        try:
            for _ in range(2):
                asked = self._asked
                beat = self.client.heartbeat(
                    self.job, self.rank, self._report(asked), timeout_s=beating.PATIENCE * self.timeout_s
                )
                if not self._note(beat, asked):
                    break
        except ControllerRefusedError as error:
            return partial(self._monitor.refused, error)
        except ControllerUnreachableError as error:
            return partial(self._monitor.silent, error, down=switches_down(self.stopping))
        except ControllerError as error:
            return partial(self._monitor.silent, error)
        except RuntimeError as error:  # httpx's, once the client has been closed
            closed = Failure(f"heartbeats ended: {error}", ())
            return lambda _: closed
        return partial(self._monitor.answered, beat)
