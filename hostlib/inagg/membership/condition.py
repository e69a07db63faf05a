# SPDX-License-Identifier: Apache-2.0
"""How a rank does: what its heartbeat reports of it, and what it finds out before each beat."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from inagg.errors import InaggError, JobRank, PeerLostError, describe_loss
from inagg.loading import loading_s
from inagg.membership.control import ControlClient
from inagg.membership.heartbeat import LEAVING_S, Failure, HeartbeatOwner
from inagg.membership.joined import Joined
from inagg.membership.mtu_probe import MtuProbe, silent_s
from inagg.membership.multicast import MulticastWatch
from inagg.membership.pings import SwitchPings
from inagg.sums.journal import NO_WAITS, Journal
from inagg_contract.aggregation import changes_way
from inagg_contract.documents import LONGEST_CHANGE_S, LongestWait, RankTraffic, Waits
from inagg_contract.ranks import place

_log = logging.getLogger(__name__)

# To report why a rank gives up, or what it has done. If the first fails, the end of its presence ends the job.
REPORT_S = 1.0
# If the controller has been silent for so long, or for so many intervals of heartbeats, the ranks watch each other.
_ALONE_S, _ALONE_INTERVALS = 2.0, 3


class Condition(HeartbeatOwner):
    """The condition of one rank. Any thread may call it.

    on_failure: called with the failure that ends the job for this rank. on_lost_way: see `HeartbeatOwner.lose_way`.
    """

    def __init__(
        self,
        joined: Joined,
        journal: Journal,
        on_failure: Callable[[Failure], None],
        on_lost_way: Callable[[int, str], None] = lambda _epoch, _why: None,
    ) -> None:
        self._joined = joined
        self._policy = joined.status.policy
        self._journal = journal
        self._on_failure = on_failure
        self._on_lost_way = on_lost_way
        self.changed_at: float | None = -math.inf  # None: a change of way is under way
        self._first_pings = joined.pings or SwitchPings("", {})
        self._attend_to_way()
        # rank -> its host and address. Known when all ranks have joined.
        self.places: Mapping[int, str] = {}
        # Returns the ranks whose hosts have not answered for so many seconds, with their addresses.
        self.silent_hosts: Callable[[float], Mapping[int, str]] = lambda _: {}
        # Return the ranks whose processes seem to have ended, and for how many seconds the controller has been silent.
        self.ended_ranks: Callable[[], Sequence[int]] = lambda: ()
        self.rtt_s: Callable[[], float] = lambda: 0.0  # to the nearest other rank
        self._loaded_at_first = loading_s()
        self.controller_silence_s: Callable[[], float] = lambda: 0.0
        self._ended_since: dict[int, float] = {}
        self._switch_down_at = -math.inf  # when pings last found one down
        self._waited_at_first = NO_WAITS  # of the first sum, of the path
        # The sum for which this rank has waited longest: its digest, its number and its text.
        self._longest = (0, 0, "")

    def change_way(self) -> None:
        """The rank is on another way from now on."""
        self.changed_at = time.monotonic()
        self._attend_to_way()

    def _attend_to_way(self) -> None:
        joined = self._joined
        self._pings = joined.pings or SwitchPings("", {})
        self._multicast = MulticastWatch(joined.transport, joined.client, joined.status, joined.rank)

    def path_is_tried(self) -> None:
        """The first sum of the job has been done: heartbeats do not count it. See whether multicast passes."""
        self._waited_at_first = self.waited()
        self._multicast.look()

    def text_of(self, number: int) -> str:
        """A call's text, also when the journal has forgotten it because it is that of the longest wait."""
        _, longest, text = self._longest
        return text if number == longest else self._journal.text(number)

    # --- what the heartbeat asks

    def waited(self) -> Waits:
        """Sums done, how long this rank waited for others to begin them, and what may make it late."""
        stats, before = self._joined.transport.stats(), self._waited_at_first
        digest = stats["longest_wait_context"]
        if digest != self._longest[0]:
            number = self._journal.find(digest)
            self._longest = (digest, number, self._journal.text(number))
        longest = (
            LongestWait(collective=self._longest[1], waited_s=stats["longest_wait_s"]) if digest else None
        )
        return Waits(
            sums=stats["collectives_completed"] - before.sums,
            waited_s=stats["waited_s"] - before.waited_s,
            longest_wait=longest,
            loading_s=loading_s() - self._loaded_at_first,
            rtt_s=self.rtt_s(),
        )

    def traffic(self) -> RankTraffic:
        """As HeartbeatOwner.traffic."""
        stats = self._joined.transport.stats()
        return RankTraffic(
            packets=stats["packets_sent"],
            retransmits=stats["retransmits"],
            chunks=stats["chunks_completed"],
            window=stats["window"],
            window_limit=stats["window_limit"],
            rtt_s=stats["srtt_s"] or 0.0,
        )

    def chunks(self) -> Mapping[str, int] | None:
        """Those of the server in this process."""
        server = self._joined.server
        return None if server is None else server.chunks()

    @property
    def switch_silent(self) -> bool:
        """As HeartbeatOwner.switch_silent."""
        return self._first_pings is not self._pings and self._first_pings.own_is_silent

    def before_beat(self) -> Failure | None:
        """Look at multicast, the switches, this process's server and the other ranks' hosts."""
        self._multicast.look()
        self._pings.learn()
        if self._first_pings is not self._pings:
            self._first_pings.ask_own()
        status, broken = self._joined.status, self._joined.broken
        if broken and not changes_way(status.on_path_loss):
            self.give_up(broken)
            return Failure(broken, ())
        if broken and not self.alone:
            self._report_lost_way(status.epoch, broken)
            return None
        if self.alone and (failure := self._watch_alone()) is not None:
            return failure
        limit = silent_s(self._policy)
        if self.alone and self.patience_s > 0:
            limit *= 2  # pings may yet show that a switch is down
        silent = self.silent_hosts(limit) if self._is_steady(2 * limit) and not self._awaits_switch else {}
        if not silent:
            if reason := self._why_silent():
                self._report_lost_way(status.epoch, reason)
            return None
        places = {rank: self.places.get(rank) or place(None, ip) for rank, ip in silent.items()}
        reason = (
            f"no answer from there for {limit:g} s: the host is down, or the network on the way is broken"
        )
        self.give_up(f"it has {describe_loss([*silent], reason, places)}")
        return Failure(reason, tuple(silent), places)

    @property
    def alone(self) -> bool:
        """Whether the controller does not answer."""
        least_s = max(_ALONE_S, _ALONE_INTERVALS * self._policy.heartbeat_interval_s)
        return self.controller_silence_s() >= least_s

    @property
    def _awaits_switch(self) -> bool:
        """Whether a switch is down, or just was, and may come back: hosts are silent then, and for a moment longer."""
        since_s = time.monotonic() - self._switch_down_at
        return self.patience_s > 0 and since_s < 2 * silent_s(self._policy)

    def unanswered(self, down: Sequence[str]) -> None:
        """As HeartbeatOwner.unanswered."""
        if down:
            self._switch_down_at = time.monotonic()

    def _watch_alone(self) -> Failure | None:
        """See what the controller would see, because it does not answer: ranks that have ended, a way that is dead."""
        now, silence_s = time.monotonic(), self.controller_silence_s()
        self._ended_since = {rank: self._ended_since.get(rank, now) for rank in self.ended_ranks()}
        # A rank that ends because of another ends later than that one.
        lost = [rank for rank, since in self._ended_since.items() if now - since >= LEAVING_S]
        alone = (
            f", and the controller at {self._joined.client.base_url} has not answered for {silence_s:.1f} s"
        )
        if lost:
            places = {rank: self.places[rank] for rank in lost if rank in self.places}
            return Failure(f"its process has ended{alone}", tuple(lost), places)
        if silence_s >= self.patience_s and (reason := self._joined.broken or self._why_silent()):
            return Failure(f"{reason}{alone}", ())
        return None

    def _is_steady(self, seconds: float) -> bool:
        """Whether the last change of way was so long ago. The network may have been away before."""
        return self.changed_at is not None and time.monotonic() - self.changed_at >= seconds

    def _why_silent(self) -> str:
        """What has been silent for long; empty if nothing has, or this process was stopped meanwhile."""
        joined = self._joined
        chunk = joined.transport.stats()["silent_chunk"]
        if chunk is None or self.pause():
            return ""
        probe = MtuProbe(joined.transport, joined.client, joined.status, joined.rank)
        error = probe.unanswered(chunk, silent_s(self._policy), self.places)
        if isinstance(error, PeerLostError):
            return describe_loss(error.lost_ranks, error.reason, error.places)
        return str(error)

    def _report_lost_way(self, epoch: int, reason: str) -> None:
        """Tell the controller, which then finds another way. Repeated with each beat until it has."""
        if self.changed_at is None:
            return
        who = self._joined.who
        try:
            self._joined.client.lost_way(who.job, who.rank, epoch, reason, timeout_s=REPORT_S)
        except (InaggError, RuntimeError) as error:  # RuntimeError: the client has been closed
            _log.warning("%s: could not report to the controller that %s: %s", who, reason, error)

    def lose_way(self, epoch: int, why: str) -> None:
        """As HeartbeatOwner.lose_way."""
        self._on_lost_way(epoch, why)

    @property
    def patience_s(self) -> float:
        """As HeartbeatOwner.patience_s: the switch may come back, and the controller behind it."""
        return LONGEST_CHANGE_S if changes_way(self._joined.status.on_path_loss) else 0.0

    @property
    def switches_down(self) -> Callable[[threading.Event], Sequence[str]]:
        """`SwitchPings.down` of the job's switches: the same for jobs with the same switches."""
        return self._pings.down

    def pause(self) -> str:
        """What kept this process from beating just now, so that it may have been given up; see `Presence.pause`."""
        presence = self._joined.presence
        return "" if presence is None else presence.pause(self._policy.heartbeat_timeout_s / 2)

    def failed(self, failure: Failure) -> None:
        """The job has ended for this rank."""
        self._on_failure(failure)

    def give_up(self, reason: str) -> None:
        """Report to the controller that this rank gives up, so that the other ranks do not wait for it."""
        give_up_on(self._joined.client, self._joined.who, reason)


def give_up_on(client: ControlClient, who: JobRank, reason: str) -> None:
    """Report to the controller that a rank gives up, so that the other ranks do not wait for it."""
    try:
        client.leave(who.job, who.rank, error=reason, timeout_s=REPORT_S)
    except InaggError as complaint:
        _log.warning("%s: could not report to the controller why it gives up: %s", who, complaint)
