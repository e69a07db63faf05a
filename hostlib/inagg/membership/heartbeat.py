# SPDX-License-Identifier: Apache-2.0
"""Reports a rank's progress to the controller, and learns from the answers whether the job has failed.

The controller sees through another connection (`presence`) that the process lives, so heartbeats may be late.

`HeartbeatMonitor` decides what the answers mean, without a clock or a thread. `RankHeartbeat` supplies the time.
"""

import logging
import math
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
    JobRank,
    MismatchError,
    PeerLostError,
    describe_loss,
)
from inagg.membership import beating
from inagg.membership.control import ControlClient
from inagg.sums.journal import NO_WAITS, Journal, Report
from inagg_contract.documents import Chunks, Heartbeat, Mismatch, RankTraffic, Waits

_log = logging.getLogger(__name__)

# Between the beats of a rank that confers.
_CONFER_PAUSE_S = 0.05

# At the end of training, all ranks leave within this time.
LEAVING_S = 3.0

# How long a rank confers. In less time the controller sees a dead process, and gets a few beats of all ranks.
_CONFER_S = 3.0

# A controller that does not answer for this time is worth a line in the log. Some programs see nothing else.
_SILENCE_S = 10.0

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

    def at(self, rank: int, pause: str = "") -> "Failure":
        """The failure as `rank` sees it, which does not call itself lost. pause: see `Presence.pause`."""
        lost = rank in self.lost_ranks
        if pause and (lost or rank in self._lost_to_others):
            return Failure(f"this rank was given up: its process {pause}", ())
        if pause and not self.lost_ranks and self.mismatch is None:
            return replace(self, reason=f"this process {pause}: {self.reason}")
        if not lost:
            return self
        others = tuple(other for other in self.lost_ranks if other != rank)
        reason = self.reason if others else f"this rank was given up: {self.reason}"
        return replace(self, reason=reason, lost_ranks=others)

    @property
    def _lost_to_others(self) -> Sequence[int]:
        """The ranks because of which a lost rank has given up (`describe_loss`)."""
        found = re.search(r"it has lost ranks? ([\d, ]+):", re.sub(r" \([^)]*\)", "", self.reason))
        return [] if found is None else [int(rank) for rank in found[1].split(",")]

    def error(self, who: JobRank, chunk: int | None) -> InaggError:
        """The error that `who` raises. chunk: its oldest chunk without a result; None without one."""
        facts = {**who._asdict(), "chunk": chunk}
        if self.mismatch is not None:
            calls = {rank: call.text for call in self.mismatch.calls for rank in call.ranks}
            return MismatchError(**facts, detail=self.reason, collective=self.mismatch.number, calls=calls)
        if not self.lost_ranks:
            return JobError(self.reason, **facts)
        return PeerLostError(self.lost_ranks, reason=self._why_lost, places=self.places, **facts)

    def __str__(self) -> str:
        return describe_loss(self.lost_ranks, self._why_lost, self.places) if self.lost_ranks else self.reason

    @property
    def _why_lost(self) -> str:
        """The reason; without the name of the lost rank, if that is the only one."""
        if len(self.lost_ranks) != 1:
            return self.reason
        reason = re.sub(rf"^rank {self.lost_ranks[0]}( \([^)]*\))?: ", "", self.reason)
        return "it left: its program has ended, or has destroyed the group" if reason == "left" else reason


class HeartbeatMonitor:
    """Decides from heartbeats and their answers whether a rank can go on. Time, in seconds, is an argument.

    A failed job is a failure at once. Silence of the controller is a failure after timeout_s, unless the ranks watch
    each other (`outlast`), or after down_s if a switch of the job is down too. Another rank's leaving on purpose is a
    failure only after a few seconds: at the end of training the ranks leave one after another, and this rank may still
    be fetching its last result, which the switch keeps until the last rank has left.
    """

    def __init__(self, *, timeout_s: float, now: float, down_s: float = 0.0) -> None:
        self._timeout_s = timeout_s
        self._down_s = down_s
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
        if now - self._first_left < LEAVING_S:
            return None
        return Failure("; ".join(f"rank {lost.rank}: {lost.reason}" for lost in beat.lost), lost_ranks)

    def refused(self, error: ControllerRefusedError, now: float) -> Failure | None:
        """The controller answered with an error. 401, 403, 404 and 409 mean that this rank is not in that job."""
        if error.status in (401, 403, 404, 409):
            return Failure(error.detail, ())
        return self.silent(error, now)

    @property
    def until(self) -> str:
        """What ends it, for the log."""
        if math.isinf(self._timeout_s):
            return ", but no new group can be made, and none can change its way"
        return f"; after {self._timeout_s:.0f} s this rank gives up"

    def outlast(self) -> None:
        """From now on the controller may be silent for ever."""
        self._timeout_s = math.inf

    def silence(self, now: float) -> float:
        """For how long the controller has not answered."""
        return now - self._last_answer

    def silent(self, error: ControllerError, now: float, down: Sequence[str] = ()) -> Failure | None:
        """A heartbeat has failed by `now`. down: the switches of the job that are down."""
        silence = self.silence(now)
        if down and silence >= self._down_s:
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


class HeartbeatOwner:
    """What a heartbeat asks of the rank that it beats for, and tells it. By default the rank has nothing to report."""

    def waited(self) -> Waits:
        """How many sums this rank has done, and how long it waited for others to begin them; part of each heartbeat."""
        return NO_WAITS

    def traffic(self) -> RankTraffic | None:
        """What this rank has sent and received; part of each heartbeat."""
        return None

    def chunks(self) -> Mapping[str, int] | None:
        """The chunks of the server in this process, by where they were summed, None if it does not serve the job; part
        of each heartbeat."""
        return None

    @property
    def switch_silent(self) -> bool:
        """Whether the switch of this host does not answer, though sums once went through it; part of each heartbeat."""
        return False

    def lose_way(self, epoch: int, why: str) -> None:
        """The job has lost the way of this epoch. Called with each answer that says so."""

    def before_beat(self) -> Failure | None:
        """Why this rank cannot go on, if it has found out. Called before each regular beat."""
        return None

    @property
    def patience_s(self) -> float:
        """How long the controller may be silent while a switch of the job is down."""
        return 0.0

    @property
    def switches_down(self) -> Callable[[threading.Event], Sequence[str]]:
        """Returns the switches of the job that are down.

        Called when the controller does not answer a regular beat, once for ranks with equal ones. May take seconds; the
        event is set when beats should stop.
        """
        return _no_switches

    def unanswered(self, down: Sequence[str]) -> None:
        """The controller has not answered a regular beat. down: the switches of the job that are down."""

    def pause(self) -> str:
        """As `Presence.pause`."""
        return ""

    def failed(self, failure: Failure) -> None:
        """The job has ended for this rank.

        Called at most once, on the thread of `beating` or on one that confers. The failure has no lost ranks if no
        other rank is to blame: the controller is gone, or the switch has restarted.
        """


def _no_switches(_stopping: threading.Event) -> Sequence[str]:
    return ()


class RankHeartbeat:
    """Beats for one rank until stopped, or until the owner has learned of a failure.

    `beating` decides when: the ranks that a process has in several jobs beat together.

    journal: the collectives that this rank has called; part of each heartbeat.

    `waits` has what the owners of all ranks have waited, and `chunks` what all servers have summed, None without
    servers, from the controller's last answer.
    """

    def __init__(
        self,
        client: ControlClient,
        who: JobRank,
        times: beating.BeatTimes,
        owner: HeartbeatOwner,
        journal: Journal,
    ) -> None:
        self.client = client
        self.who = who
        self.times = times
        self._owner = owner
        self._journal = journal
        self.waits: Mapping[int, Waits] = {}
        self.chunks: Chunks | None = None
        self._asked: tuple[int, int] | None = None
        self._complained = False
        self.stopping = threading.Event()
        self._turn = threading.Lock()  # held while what a regular beat reports is put together
        # Guards the monitor, and decides whether stopping or failing comes first; the owner's `failed` runs under it.
        self._lock = threading.RLock()
        self._monitor = HeartbeatMonitor(
            timeout_s=times.timeout_s, now=time.monotonic(), down_s=owner.patience_s
        )

    @property
    def switches_down(self) -> Callable[[threading.Event], Sequence[str]]:
        """As `HeartbeatOwner.switches_down`."""
        return self._owner.switches_down

    @property
    def silence_s(self) -> float:
        """For how long the controller has not answered."""
        with self._lock:
            return self._monitor.silence(time.monotonic())

    def outlast(self) -> None:
        """The ranks watch each other: the controller may be silent for ever."""
        with self._lock:
            self._monitor.outlast()

    def start(self) -> None:
        """Begin to beat. The first beat is due within an interval."""
        beating.begin(self)

    def stop(self) -> None:
        """Stop beating. After this has returned the owner learns of no failure. Any thread may call it, repeatedly too.

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
            failure = self._owner.before_beat()
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
        self._owner.unanswered(down)
        self._settle(partial(self._monitor.silent, error, down=down))

    def beat(self) -> None:
        """Send a regular beat alone."""
        self._settle(self._beat(self.switches_down))

    def end(self, error: Exception) -> None:
        """End the job for this rank, because its beats have."""
        _log.error("%s: no more heartbeats", self.who, exc_info=error)
        ended = Failure(f"heartbeats ended: {type(error).__name__}: {error}", ())
        self._settle(lambda _: ended)

    def confer(
        self,
        timeout_s: float = _CONFER_S,
        *,
        pause_s: float = _CONFER_PAUSE_S,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """Beat quickly, on the caller's thread, until the job has failed, this has been stopped, or timeout_s is over.

        For a rank that has seen something fail, when other ranks or the controller may know the reason. pause_s:
        between an answer and the next beat. until: ends it earlier; called after each answer.
        """
        end = time.monotonic() + timeout_s
        while (left := end - time.monotonic()) > 0 and not self.stopping.is_set():
            self._settle(self._beat(timeout_s=left))
            if until() or self.stopping.wait(pause_s):
                break
        with self._lock:  # if it has failed just now, the owner knows
            return

    def beat_once_more(self, timeout_s: float) -> None:
        """After stop(), report what has been done since the last beat, and learn of a change of way, while this rank is
        in the job."""
        try:
            self._note(self._send(None, timeout_s), None)
        except InaggError as error:
            _log.debug("%s: no last heartbeat: %s", self.who, error)

    def _report(self, asked: tuple[int, int] | None) -> Report:
        owner = self._owner
        return replace(
            self._journal.report(asked),
            waits=owner.waited(),
            chunks=owner.chunks(),
            switch_silent=owner.switch_silent,
            traffic=owner.traffic(),
        )

    def _send(self, asked: tuple[int, int] | None, timeout_s: float) -> Heartbeat:
        report = self._report(asked)
        return self.client.heartbeat(self.who.job, self.who.rank, report, timeout_s=timeout_s)

    def _note(self, beat: Heartbeat, asked: tuple[int, int] | None) -> bool:
        """Keep what an answer says. Returns whether the controller looks for a difference, and does not ask again: it
        asks for several calls, or for a part of those that it asked for (`asked`)."""
        if beat.lost_way is not None:
            self._owner.lose_way(beat.lost_way, beat.lost_why or "")
        ask = None if beat.ask is None else (beat.ask.first, beat.ask.last)
        self._asked, self.waits, self.chunks = ask, beat.waits, beat.chunks
        if ask is None or ask == asked:
            return False
        return ask[0] != ask[1] or (asked is not None and asked[0] <= ask[0] and ask[1] <= asked[1])

    def _settle(self, judge: Callable[[float], Failure | None]) -> None:
        with self._lock:
            if self.stopping.is_set():
                return
            now = time.monotonic()
            silence_s = self._monitor.silence(now)
            failure = judge(now)
            if failure is None:
                self._tell(silence_s, self._monitor.silence(now))
                return
            self.stopping.set()
            beating.end(self, 0.0)
            self._owner.failed(failure.at(self.who.rank, self._owner.pause()))

    def _tell(self, before_s: float, silence_s: float) -> None:
        """Log once that the controller has not answered for long, and that it answers again. before_s: its silence
        before this beat."""
        if self._complained and silence_s < _SILENCE_S:
            self._complained = False
            _log.warning("%s: the controller answers again, after %.0f s", self.who, before_s)
        elif not self._complained and silence_s >= _SILENCE_S:
            self._complained = True
            _log.warning(
                "%s: the controller at %s has not answered for %.0f s. Sums go on%s. Is inagg-controller running "
                "there, and can this host reach it?",
                self.who,
                self.client.base_url,
                silence_s,
                self._monitor.until,
            )

    def _beat(
        self,
        switches_down: Callable[[threading.Event], Sequence[str]] = lambda _stopping: (),
        timeout_s: float = math.inf,
    ) -> Callable[[float], Failure | None]:
        """Send one beat. Returns a function that gives the outcome to the monitor, with the time.

        switches_down: called if no answer comes. timeout_s: at most a part of the time without any answer.

        If the controller looks for a difference, a second beat answers at once. What the controller asks for next waits
        for the next beat.
        """
        patience_s = min(timeout_s, beating.PATIENCE * self.times.timeout_s)
        try:
            for _ in range(2):
                asked = self._asked
                beat = self._send(asked, patience_s)
                if not self._note(beat, asked):
                    break
        except ControllerRefusedError as error:
            return partial(self._monitor.refused, error)
        except ControllerUnreachableError as error:
            down = switches_down(self.stopping)
            self._owner.unanswered(down)
            return partial(self._monitor.silent, error, down=down)
        except ControllerError as error:
            return partial(self._monitor.silent, error)
        except RuntimeError as error:  # httpx's, once the client has been closed
            closed = Failure(f"heartbeats ended: {error}", ())
            return lambda _: closed
        return partial(self._monitor.answered, beat)
