# SPDX-License-Identifier: Apache-2.0
"""When a job may go back to its first way (docs/protocol.md, 7.6)."""

from dataclasses import dataclass, field

# A way to which a job has gone back was no better if it is lost within this time.
_LASTS_S = 600.0
# After each such loss the way has to be there twice as long as before, up to this multiple.
_MOST = 64


@dataclass(slots=True)
class WayBack:
    """The way back of one job, in seconds of any monotonic clock.

    heard: rank -> when its last heartbeat came. silent_at: the ranks that get no answer from the switch of their host.
    since: since when the first way has been there; None: it is not. look_at: when to look next. gone_at: when the job
    last went back. factor: how many times the operator's time the first way has to be there.
    """

    heard: dict[int, float] = field(default_factory=dict)
    silent_at: set[int] = field(default_factory=set)
    since: float | None = None
    look_at: float = 0.0
    gone_at: float | None = None
    factor: int = 1

    def hear(self, rank: int, now: float, *, switch_silent: bool) -> None:
        """A heartbeat of a rank has come, which says whether the switch of its host answers."""
        self.heard[rank] = now
        (self.silent_at.add if switch_silent else self.silent_at.discard)(rank)

    def went_back(self, now: float) -> None:
        """The job goes back."""
        self.gone_at, self.since = now, None

    def way_lost(self, now: float) -> None:
        """The job has lost its way, whatever that was."""
        self.since = None
        if self.gone_at is not None:
            self.factor = min(2 * self.factor, _MOST) if now - self.gone_at < _LASTS_S else 1
            self.gone_at = None
