# SPDX-License-Identifier: Apache-2.0
"""Heartbeats of ranks that have nothing else of a rank."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inagg.errors import JobRank
from inagg.membership.beating import BeatTimes
from inagg.membership.control import ControlClient
from inagg.membership.heartbeat import Failure, HeartbeatOwner, RankHeartbeat
from inagg.sums.journal import NO_WAITS, Journal
from inagg_contract.documents import RankTraffic, Waits


def no_switch(_stopping: threading.Event) -> Sequence[str]:
    return ()


@dataclass
class Rank(HeartbeatOwner):
    """on_failure: gets the failure. down: as `HeartbeatOwner.switches_down`. waits,
    sent: what `waited` and `traffic` return."""

    on_failure: Callable[[Failure], None]
    down: Callable[[threading.Event], Sequence[str]] = no_switch
    waits: Waits = NO_WAITS
    sent: RankTraffic | None = None

    def waited(self) -> Waits:
        return self.waits

    def traffic(self) -> RankTraffic | None:
        return self.sent

    @property
    def switches_down(self) -> Callable[[threading.Event], Sequence[str]]:
        return self.down

    def failed(self, failure: Failure) -> None:
        self.on_failure(failure)


def make_heartbeat(
    client: ControlClient,
    owner: HeartbeatOwner,
    interval_s: float,
    timeout_s: float,
    who: JobRank = JobRank(1, "", 0),  # noqa: B008 (it is immutable)
    journal: Journal | None = None,
) -> RankHeartbeat:
    """A heartbeat that has not started."""
    return RankHeartbeat(client, who, BeatTimes(interval_s, timeout_s), owner, journal or Journal())
