# SPDX-License-Identifier: Apache-2.0
"""How a rank does: what its heartbeat reports of it, and what it finds out before each beat."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from inagg.errors import InaggError, JobRank, describe_loss
from inagg.membership.control import ControlClient
from inagg.membership.heartbeat import Failure, HeartbeatOwner
from inagg.membership.joined import Joined
from inagg.membership.mtu_probe import silent_s
from inagg.membership.multicast import MulticastWatch
from inagg.membership.pings import SwitchPings
from inagg.sums.journal import NO_WAITS, Journal
from inagg_contract.documents import LongestWait, Waits
from inagg_contract.ranks import place

_log = logging.getLogger(__name__)

# To report why a rank gives up, or what it has done. If the first fails, the end of its presence ends the job.
REPORT_S = 1.0


class Condition(HeartbeatOwner):
    """The condition of one rank. Any thread may call it.

    on_failure: called with the failure that ends the job for this rank.
    """

    def __init__(self, joined: Joined, journal: Journal, on_failure: Callable[[Failure], None]) -> None:
        self._joined = joined
        self._policy = joined.status.policy
        self._journal = journal
        self._on_failure = on_failure
        self._pings = joined.pings or SwitchPings("", {})
        self._multicast = MulticastWatch(joined.transport, joined.client, joined.status, joined.rank)
        # rank -> its host and address. Known when all ranks have joined.
        self.places: Mapping[int, str] = {}
        # Returns the ranks whose hosts have not answered for so many seconds, with their addresses.
        self.silent_hosts: Callable[[float], Mapping[int, str]] = lambda _: {}
        self._waited_at_first = NO_WAITS  # of the first sum, of the path
        # The sum for which this rank has waited longest: its digest, its number and its text.
        self._longest = (0, 0, "")

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
        """Sums done, and how long this rank waited for others to begin them."""
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
        )

    def chunks(self) -> Mapping[str, int] | None:
        """Those of the server in this process."""
        return None if self._joined.server is None else self._joined.server.chunks()

    def before_beat(self) -> Failure | None:
        """Look at multicast, the switches, this process's server and the other ranks' hosts."""
        self._multicast.look()
        self._pings.learn()
        if self._joined.server is not None and (why := self._joined.server.failure) is not None:
            self.give_up(f"the server in its process has ended: {why}")
            return Failure(f"the server in this process has ended: {why}", ())
        limit = silent_s(self._policy)
        silent = self.silent_hosts(limit)
        if not silent:
            return None
        places = {rank: self.places.get(rank) or place(None, ip) for rank, ip in silent.items()}
        reason = (
            f"no answer from there for {limit:g} s: the host is down, or the network on the way is broken"
        )
        self.give_up(f"it has {describe_loss([*silent], reason, places)}")
        return Failure(reason, tuple(silent), places)

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
