# SPDX-License-Identifier: Apache-2.0
"""A rank's membership of one job: its sums, its heartbeat, its end. `join` makes it."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from inagg._core import EngineError
from inagg.errors import (
    ControllerRefusedError,
    InaggError,
    IntegrityError,
    JobError,
    PeerLostError,
    describe_loss,
)
from inagg.membership.beating import BeatTimes
from inagg.membership.change import Changed, go_on
from inagg.membership.condition import REPORT_S, Condition
from inagg.membership.heartbeat import Failure, RankHeartbeat
from inagg.membership.joined import Joined
from inagg.membership.meeting import OverError
from inagg.membership.mtu_probe import MtuProbe, silent_s
from inagg.membership.own_server import OwnServer
from inagg.membership.rounds import Reducing
from inagg.membership.standing import GaveUp, Phase, Standing
from inagg.sums.journal import Journal
from inagg.sums.queue import SumQueue
from inagg.sums.reduction import Callback
from inagg_contract.aggregation import INNER, SERVER, changes_way
from inagg_contract.documents import LONGEST_CHANGE_S, JobStatus

_log = logging.getLogger(__name__)

FORKED = (
    "this process was forked from a member of the job and is not a member itself, so its sums would never end. Use the "
    "group in the parent only."
)
_CONFLICT, _PAUSE_S = 409, 0.25
_BLIND_S = 2.0  # some retransmission timeouts
_DRAIN_S = 3.0  # a rank that leaves gives up its unfinished sums after this time without a packet


class Session:
    """One rank in one running job. Any thread may call it.

    `sums` does all-reduces, `journal` notes all collectives.

    Args:
        joined: closed with the session.
        on_failure: called, on any thread, when the job has ended early.
    """

    def __init__(self, joined: Joined, on_failure: Callback = lambda: None) -> None:
        status = joined.status
        self.id = status.id
        self.rank = joined.rank
        self._who = joined.who
        self._joined = joined
        self._client = joined.client
        self._policy = status.policy
        self._transport = joined.transport
        self._on_failure = on_failure
        self._joined_by = os.getpid()
        self._standing = Standing()
        self._changing = threading.Lock()  # guards what follows
        self._changer: threading.Thread | None = None
        self._changes: list[Changed] = []
        self._told_at = -math.inf  # when the controller last said that the job changes its way
        self._leaving = threading.Lock()  # guards the two below, and is held while this rank leaves
        self._taken_leave = False
        self._left: JobStatus | None = None  # the job as the controller let this rank go
        self.journal = Journal()
        self.sums = SumQueue(
            self,
            joined.transport,
            workers=status.workers,
            words=status.words,
            slots=status.slots,
            journal=self.journal,
        )
        self._condition = Condition(joined, self.journal, self._job_failed, self._lose_way)
        self._heartbeat = RankHeartbeat(
            joined.client, joined.who, BeatTimes.of(self._policy), self._condition, self.journal
        )
        self._heartbeat.start()

    @property
    def aggregation(self) -> str:
        """What sums now, as `Options.aggregation`."""
        return self._joined.status.aggregation

    @property
    def _server(self) -> OwnServer | None:
        """That of this process, if it serves the job now."""
        return self._joined.server

    @property
    def _probe(self) -> MtuProbe:
        return MtuProbe(self._transport, self._client, self._joined.status, self.rank)

    @property
    def path(self) -> Literal["switch", "server", "rounds"]:
        """Where sums go: to a switch, to servers alone, or from rank to rank in rounds over gloo."""
        if self.aggregation == INNER:
            return "rounds"
        return "server" if self.aggregation == SERVER else "switch"

    def try_path(self, timeout_s: float, check: Callback = lambda: None) -> None:
        """Do the first sum of the job, as `MtuProbe.run`, and see whether multicast passes. Heartbeats do not count it.

        Raises:
            NetworkTimeoutError: packets of full size do not pass.
            InaggError: the job has failed.
        """
        try:
            self._probe.run(timeout_s, check)
        except EngineError as error:
            raise self.translate(error) from error
        self._condition.path_is_tried()

    @property
    def places(self) -> Mapping[int, str]:
        """rank -> its host and address. Known when all ranks have joined."""
        return self._condition.places

    def learn_places(self, places: Mapping[int, str]) -> None:
        """All ranks have joined, from these hosts and addresses."""
        self._condition.places = places

    def watch(
        self,
        silent: Callable[[float], Mapping[int, str]],
        ended: Callable[[], Sequence[int]],
        rtt_s: Callable[[], float],
    ) -> None:
        """Lose ranks whose hosts are cut off from this one, though the controller may hear both; and, while the
        controller does not answer, ranks whose processes have ended. The job then needs no controller to go on.

        silent: returns the ranks whose hosts have not answered for so many seconds, with their addresses. ended: those
        whose processes have ended. rtt_s: returns the time of a round trip to the nearest other rank.
        """
        self._condition.rtt_s = rtt_s
        self._condition.silent_hosts, self._condition.ended_ranks = silent, ended
        self._condition.controller_silence_s = lambda: self._heartbeat.silence_s
        self._heartbeat.outlast()

    def may_sum_alone(self, connect: Callable[[int], Reducing]) -> None:
        """The ranks can sum without switches and servers. connect: as `Joined.connect`."""
        self._joined.connect = connect

    def stats(self) -> dict[str, Any]:
        """Counters of the transport (packets, bytes, retransmits, RTT...), with job and rank.

        ``waits`` is how long each rank has waited for others, ``chunks`` where the job's chunks were summed, from the
        last heartbeats; ``places`` where the ranks are; ``server_chunks`` is what the server in this process
        knows of its chunks. ``changes`` are those of the way (`Changed`).
        """
        chunks = self._heartbeat.chunks
        waits = {rank: waited.model_dump() for rank, waited in sorted(self._heartbeat.waits.items())}
        for waited in waits.values():
            if (longest := waited["longest_wait"]) is not None:
                longest["call"] = self._condition.text_of(longest["collective"])
        return {
            **self._who._asdict(),
            "aggregation": self.aggregation,
            "link_rate": self._joined.link_rate,
            **self._transport.stats(),
            "chunks": None if chunks is None else chunks.model_dump(),
            "server_chunks": self._condition.chunks(),
            "waits": waits,
            "places": dict(self.places),
            "changes": [change.as_dict() for change in self._changes],
        }

    def catch_up(self) -> None:
        """Get the figures of all ranks that `stats` gives, as of now. It takes up to eight heartbeat intervals."""
        if self.failure is not None or self._standing.state.phase is not Phase.MEMBER:
            return
        done = self._condition.waited().sums
        interval_s = self._policy.heartbeat_interval_s
        self._heartbeat.confer(
            8 * interval_s,
            pause_s=interval_s / 2,  # other ranks' figures change with their own beats
            until=lambda: (
                len(waits := self._heartbeat.waits) >= len(self.places)
                and all(waited.sums >= done for waited in waits.values())
            ),
        )

    # --- changes of way

    def _lose_way(self, epoch: int, why: str) -> None:
        """Take this rank to the next way, in a thread, unless the way of the epoch is behind it already: an answer may
        come late. Repeating it changes nothing."""
        self._told_at = time.monotonic()
        with self._changing:
            if self._changer is not None or epoch in self._joined.behind or self._over:
                return
            changer = threading.Thread(
                target=self._change, args=(epoch, why), name="inagg-change", daemon=True
            )
            changer.start()
            self._changer = changer

    def _change(self, lost: int, why: str) -> None:
        self._condition.changed_at = None
        try:
            change = go_on(self._joined, lost, why, lambda: self._over)
            self._condition.change_way()
            self._changes.append(change)
            _log.warning(
                "%s: %s. Sums go on, on %s, after %.1f s", self._who, change.why, change.to, change.seconds
            )
        except OverError as over:
            _log.debug("%s: no change of way: %s", self._who, over)  # heartbeats say why
        except (EngineError, InaggError) as error:
            if not self._over:
                self.fail(f"could not change its way: {error}")
        except Exception as error:
            _log.exception("%s: could not change its way", self._who)
            self.fail(f"could not change its way: {type(error).__name__}: {error}")
        finally:
            with self._changing:
                self._changer = None

    @property
    def _over(self) -> bool:
        return self._standing.state.phase is not Phase.MEMBER

    def _await_change(self, timeout_s: float) -> bool:
        """Wait for a change under way, for at most so long. Returns whether there was one."""
        with self._changing:
            changer = self._changer
        if changer is None or changer is threading.current_thread():
            return False
        changer.join(timeout_s)
        return True

    # --- the end

    @property
    def failure(self) -> InaggError | None:
        """Why the job has ended, as far as this rank knows; None if it has not. A forked child is not a member."""
        if self._forked:
            return JobError(FORKED, **self._who._asdict())
        ending = self._standing.state.ending
        return None if ending is None else ending.error(self._who, None)

    def diagnose(self) -> InaggError | None:
        """`failure`, after asking the controller for up to a few seconds. For callers that saw something fail."""
        if not self._forked and self._standing.state.phase is Phase.MEMBER:
            self._heartbeat.confer()
        return self.failure

    def leave(self, cause: str | None = None, since: float = 0.0) -> None:
        """Leave the job, and close. First wait for sums under way; if their packets stop, the job fails.

        cause: why this rank's program ended early, at the time `since`. The job fails one heartbeat interval after
            `since`: as when a process dies, other ranks have time to fetch finished sums.
        """
        if self._forked:
            return  # the parent is still a member
        if self.failure is None:
            if cause is not None:
                time.sleep(max(0.0, since + self._policy.heartbeat_interval_s - time.monotonic()))
            elif (left := self._drain()) > 0:
                cause = f"left while {left} of its sums {'was' if left == 1 else 'were'} not done"
            else:
                cause = self._joined.broken or None  # other ranks may lack its results
        try:
            if cause is not None:
                self.fail(cause)
            elif self.failure is None:
                self._take_leave()
        finally:
            self.close()

    def _take_leave(self) -> None:
        """Tell the controller, once, that this rank leaves. First it goes through a change of way under way, because
        other ranks may lack results that this one has."""
        with self._leaving:
            if self._taken_leave:
                return
            self._taken_leave = True
            timeout_s = REPORT_S if self._condition.alone else None
            try:
                self._heartbeat.stop()
                if self._server is not None:
                    self._heartbeat.beat_once_more(REPORT_S)  # its sums are done, so its server's are too
                self._left = self._leave(timeout_s)
            except (InaggError, RuntimeError) as error:  # RuntimeError: the client has been closed
                _log.warning("%s: could not leave at the controller: %s", self._who, error)

    def _leave(self, timeout_s: float | None) -> JobStatus:
        """Leave at the controller, which lets nobody go while the job changes its way."""
        end = time.monotonic() + LONGEST_CHANGE_S
        while True:
            try:
                return self._client.leave(self.id, self.rank, timeout_s=timeout_s)
            except ControllerRefusedError as refused:
                left_s = end - time.monotonic()
                if refused.status != _CONFLICT or self._over or left_s <= 0:
                    raise
            self._heartbeat.beat_once_more(REPORT_S)  # it learns which way is lost
            if not self._await_change(left_s):
                time.sleep(_PAUSE_S)

    def _drain(self) -> int:
        """Wait for sums under way, on whatever way. Returns how many were not done."""
        silent_s = self._transport.stats()["silent_s"]
        left = self.sums.drain(_DRAIN_S)
        if not changes_way(self._joined.status.on_path_loss):
            return left
        end = time.monotonic() + LONGEST_CHANGE_S
        while left > 0 and self.failure is None and time.monotonic() < end:
            changed = self._await_change(LONGEST_CHANGE_S)
            # Perhaps nobody knows yet that the way is lost, or other ranks have not gone on.
            silent = self._transport.stats()["silent_s"] > silent_s or self._heartbeat.silence_s >= _DRAIN_S
            told = time.monotonic() - self._told_at < _DRAIN_S
            if not (changed or silent or told):
                break
            silent_s = self._transport.stats()["silent_s"]
            left = self.sums.drain(_DRAIN_S)
        self._await_change(LONGEST_CHANGE_S)
        return left

    def close(self) -> None:
        """Leave the job at once. Unfinished sums fail. Closing twice changes nothing."""
        if not self._standing.become(Phase.CLOSED):
            return
        try:
            self._heartbeat.stop()
            # If this rank ends because others have left, the job still runs for ranks that have not noticed. This rank
            # leaves too, so that they do not see it as dead.
            ending = self._standing.state.ending
            if ending is None or (isinstance(ending, Failure) and ending.lost_ranks):
                self._take_leave()
                if self._server is not None:
                    if self._left is None:
                        time.sleep(_BLIND_S)  # nobody says whether others still ask it for a last result
                    elif self._left.state == "running":
                        self._server.linger(self._client, self.id)
        finally:
            self._transport.close()
            self._await_change(_DRAIN_S)
            self.sums.close()
            if self._joined.rounds is not None:
                self._joined.rounds.close()
            if self._server is not None:
                self._server.close()
            if self._joined.presence is not None:
                self._joined.presence.close()
            for udp in (*self._joined.udp, self._joined.beside):
                if udp is not None:
                    udp.close()
            self._client.close()
            # It refers to the group. Without it the group, and its connections, end with the program's last reference.
            self._on_failure = lambda: None

    def fail(self, reason: str) -> None:
        """End the job for all ranks. Unfinished sums fail."""
        self._give_up(GaveUp(reason))

    def overrun(self, elements: int, timeout_s: float) -> None:
        """End the job for all ranks, because a sum was not done within its timeout."""
        self._give_up(
            GaveUp(f"{elements} elements were not summed within {timeout_s:g} s", elements, timeout_s)
        )

    def _give_up(self, ending: GaveUp) -> None:
        if not self._standing.become(Phase.ENDED, ending):
            return
        self._transport.fail(ending.reason)
        self._heartbeat.stop()
        self._condition.give_up(ending.reason)
        self._on_failure()  # last: other ranks then know the reason when their connections break

    def _job_failed(self, failure: Failure) -> None:
        failure = replace(failure, places={**self.places, **failure.places})
        if self._standing.become(Phase.ENDED, failure):
            _log.error("%s: the job has ended early: %s", self._who, failure)
            self._transport.fail(failure.reason)
            self._on_failure()

    @property
    def _forked(self) -> bool:
        """Whether this is a forked child, which has no threads that do sums, and whose locks may be held for ever."""
        return os.getpid() != self._joined_by

    def refuse_forked(self) -> None:
        """Raises JobError in a forked child."""
        if self._forked:
            raise JobError(FORKED, **self._who._asdict())

    # --- errors

    def translate(self, error: Exception) -> InaggError:
        """Make an InaggError, which says whose fault it is, from what the core or a device raised."""
        who = self._who
        if not isinstance(error, EngineError):
            return JobError(f"{type(error).__name__}: {error}", **who._asdict())
        chunk = error.chunk
        if error.code in ("checksum", "kind_mismatch") and self._standing.state.phase is Phase.MEMBER:
            # The controller compares what the ranks have called. It needs a few heartbeats of each rank.
            self._heartbeat.confer()
        ending = self._standing.state.ending
        if isinstance(ending, GaveUp) and error.code == "failed":
            return ending.error(who, chunk)
        if isinstance(ending, Failure) and (error.code != "checksum" or ending.mismatch is not None):
            return ending.error(who, chunk)
        if chunk is not None:
            if error.code == "checksum":
                return IntegrityError(chunk, **who._asdict())
            if error.code == "kind_mismatch":
                number, text = self.journal.last()
                return IntegrityError(chunk, **who._asdict(), call=f"number {number}, {text}")
            if error.code == "give_up":
                return self._probe.silence(chunk, self._policy.give_up_s)
            if error.code == "silent":
                return self._unanswered(chunk)
        return JobError(error.message, **who._asdict(), chunk=chunk)

    def _unanswered(self, chunk: int) -> InaggError:
        """The error for the silence of what sums a chunk; it ends the job, if the controller has not ended it."""
        self._heartbeat.confer(REPORT_S, until=lambda: True)
        if (failure := self.failure) is not None:
            return failure
        if pause := self._condition.pause():
            self.fail(f"this process {pause}")
            return JobError(f"this process {pause}", **self._who._asdict(), chunk=chunk)
        error = self._probe.unanswered(chunk, silent_s(self._policy), self.places)
        reason = str(error)
        if isinstance(error, PeerLostError):
            reason = f"it has {describe_loss(error.lost_ranks, error.reason, error.places)}"
        self.fail(reason)
        return error
