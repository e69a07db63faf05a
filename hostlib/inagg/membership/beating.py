# SPDX-License-Identifier: Apache-2.0
"""Sends the regular heartbeats of all groups of a process: one thread, and one request, for each controller.

A rank whose beat has the texts of calls sends it alone, because these may be long. So does a rank that is the only one.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from inagg.errors import ControllerError, ControllerRefusedError, JobRank
from inagg.membership.control import ControlClient
from inagg.sums.journal import Report
from inagg_contract.documents import OUTAGE_TIMEOUTS, Heartbeat, Policy

# A beat may take this part of the timeout. The next one then uses another connection.
PATIENCE = 1 / 3


@dataclass(frozen=True, slots=True)
class BeatTimes:
    """interval_s: between regular beats, in seconds. timeout_s: for how long no beat may be answered."""

    interval_s: float
    timeout_s: float

    @classmethod
    def of(cls, policy: Policy) -> Self:
        """Those of a job, whose controller may be away for longer than a rank."""
        return cls(policy.heartbeat_interval_s, OUTAGE_TIMEOUTS * policy.heartbeat_timeout_s)


class Member(Protocol):
    """A rank of a job: `inagg.membership.heartbeat.RankHeartbeat`."""

    client: ControlClient
    who: JobRank
    times: BeatTimes
    stopping: threading.Event

    @property
    def switches_down(self) -> Callable[[threading.Event], Sequence[str]]: ...

    def prepare(self) -> Report | None: ...

    def beat(self) -> None: ...

    def answered(self, answer: Heartbeat | ControllerRefusedError) -> None: ...

    def unanswered(self, error: ControllerError, down: Sequence[str]) -> None: ...

    def end(self, error: Exception) -> None: ...


def begin(member: Member) -> None:
    """Beat for a member from now on."""
    with _lock:
        _loops.setdefault(_kind(member), _Loop(member)).add(member)


def end(member: Member, patience_s: float) -> None:
    """Do not beat for a member any more. If it was the last one, wait for the thread, at most `patience_s`."""
    with _lock:
        loop = _loops.get(_kind(member))
        if loop is None or not loop.remove(member):
            return
        del _loops[_kind(member)]
    if loop.thread is not threading.current_thread():
        loop.thread.join(patience_s)


def _kind(member: Member) -> tuple[object, ...]:
    """Equal for members that beat together."""
    return (*member.client.shared_with, member.times)


class _Loop:
    """The thread of members that beat together. `_lock` guards `_members`."""

    def __init__(self, first: Member) -> None:
        self._times = first.times
        self._url, self._authority = first.client.base_url, first.client.authority
        self._client: ControlClient | None = None  # of several members together
        self._members: list[Member] = []
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._run, name="inagg-heartbeat", daemon=True)

    def add(self, member: Member) -> None:
        self._members.append(member)
        if len(self._members) == 1:
            self.thread.start()

    def remove(self, member: Member) -> bool:
        """Returns whether no member is left."""
        if member not in self._members:
            return False
        self._members.remove(member)
        if not self._members:
            self._over.set()
        return not self._members

    def _run(self) -> None:
        next_beat = time.monotonic()
        while not self._over.wait(max(0.0, next_beat - time.monotonic())):
            next_beat = max(next_beat + self._times.interval_s, time.monotonic())
            with _lock:
                members = tuple(self._members)
            self._beat(members)
        if self._client is not None:
            self._client.close()

    def _beat(self, members: Sequence[Member]) -> None:
        """Send one regular beat for each member."""
        together: list[tuple[Member, Report]] = []
        for member in members:
            try:
                report = member.prepare()
                if report is None:
                    continue
                if report.calls or len(members) == 1:
                    member.beat()
                else:
                    together.append((member, report))
            except Exception as error:  # the other members go on
                member.end(error)
        if together:
            self._send(together)

    def _send(self, together: Sequence[tuple[Member, Report]]) -> None:
        if self._client is None:
            self._client = ControlClient(self._url, authority=self._authority)
        beats = [
            (member.who.job, member.who.rank, member.client.secret(member.who.job), report)
            for member, report in together
        ]
        try:
            answers = self._client.heartbeats(beats, timeout_s=PATIENCE * self._times.timeout_s)
        except ControllerRefusedError:  # perhaps because of one of them
            for member, _ in together:
                member.beat()
            return
        except ControllerError as error:
            down: dict[object, Sequence[str]] = {}
            for member, _ in together:
                find = member.switches_down
                if find not in down:
                    down[find] = find(member.stopping)
                member.unanswered(error, down[find])
            return
        for (member, _), answer in zip(together, answers, strict=True):
            try:
                member.answered(answer)
            except Exception as error:  # the other members go on
                member.end(error)


_lock = threading.Lock()  # guards what follows
_loops: dict[tuple[object, ...], _Loop] = {}


def _forget_all() -> None:
    """A forked child has none of these threads."""
    global _lock
    _lock = threading.Lock()
    _loops.clear()


os.register_at_fork(after_in_child=_forget_all)
