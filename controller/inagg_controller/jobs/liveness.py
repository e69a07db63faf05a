# SPDX-License-Identifier: Apache-2.0
"""When the ranks of a job were last heard of, and which of them are lost (docs/protocol.md, 6.3)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from inagg_contract.documents import OUTAGE_TIMEOUTS


@dataclass(slots=True)
class Liveness:
    """The ranks of one job, whose silence counts once they have registered.

    last_seen: rank -> when it was last heard. beating: ranks that have been heard since they registered. unsteady:
    ranks whose beats pause while their program is busy. attended: rank -> presence connections of its process.
    vanished: rank -> when the last of them ended. heard_at: when any rank was last heard. heard_since: since when,
    without a long pause.
    """

    last_seen: dict[int, float] = field(default_factory=dict)
    beating: set[int] = field(default_factory=set)
    unsteady: set[int] = field(default_factory=set)
    attended: dict[int, int] = field(default_factory=dict)
    vanished: dict[int, float] = field(default_factory=dict)
    heard_at: float = 0.0
    heard_since: float = 0.0

    def begin(self, ranks: Iterable[int], now: float) -> None:
        """From now on the silence of these ranks counts."""
        self.last_seen.update(dict.fromkeys(ranks, now))

    def hear(self, rank: int, now: float, pause_s: float) -> None:
        """A rank lives. pause_s: the time without a sign of any rank that is a long pause."""
        if now - self.heard_at >= pause_s:
            self.heard_since = now
        self.heard_at = self.last_seen[rank] = now
        self.beating.add(rank)

    def attend(self, rank: int, *, steady: bool) -> None:
        """A rank has opened a presence connection: its first, or a replacement. steady: see `unsteady`."""
        (self.unsteady.discard if steady else self.unsteady.add)(rank)
        self.attended[rank] = self.attended.get(rank, 0) + 1
        self.vanished.pop(rank, None)

    def vanish(self, rank: int, now: float) -> None:
        """A presence connection of a rank has ended."""
        self.attended[rank] = left = max(0, self.attended.get(rank, 0) - 1)
        if left == 0:
            self.vanished[rank] = now

    def forget(self, rank: int) -> None:
        """A rank has left before the job was placed; another process may have its number."""
        del self.last_seen[rank]
        self.beating.discard(rank)
        self.unsteady.discard(rank)
        self.attended.pop(rank, None)
        self.vanished.pop(rank, None)

    def skip(self, seconds: float) -> None:
        """The controller did not run for so long: the ranks' heartbeats of that time wait unread."""
        self.last_seen = {rank: seen + seconds for rank, seen in self.last_seen.items()}

    def lost(self, due: Iterable[int], now: float, timeout_s: float, grace_s: float) -> Mapping[int, str]:
        """The ranks that are lost, and why.

        due: those whose silence counts. timeout_s: of a heartbeat. grace_s: the time after the end of the last presence
        connection. If no rank is heard, the controller may be the one that is cut off: that silence does not count
        until it is very long.
        """
        hears_others = now - self.heard_at < timeout_s / 2
        lost = {}
        for rank in sorted(due):
            if rank in self.vanished and now - self.vanished[rank] >= grace_s:
                lost[rank] = "its process has ended without leaving the job"
            elif (
                hears_others
                and rank not in self.unsteady
                and now - max(self.last_seen[rank], self.heard_since) >= timeout_s
            ):
                lost[rank] = _silence(timeout_s, "its process is stopped")
            elif now - self.last_seen[rank] >= OUTAGE_TIMEOUTS * timeout_s:
                what = "its process is stopped"
                what += " or holds the GIL" if rank in self.unsteady else ""
                lost[rank] = _silence(OUTAGE_TIMEOUTS * timeout_s, what)
        return lost

    def ages(self, now: float) -> dict[int, float]:
        """Rank -> seconds since it was last heard."""
        return {rank: max(0.0, now - seen) for rank, seen in self.last_seen.items()}


def _silence(seconds: float, what: str) -> str:
    """Why a rank that has been silent for so long is lost. what: is the matter with its process, perhaps."""
    return f"no heartbeat for {seconds:g} s: {what}, or its host is down or cut off"
