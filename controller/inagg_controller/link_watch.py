# SPDX-License-Identifier: Apache-2.0
"""Watches the links between switches: has beacons sent, and tells the job table which links pass them."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from inagg_controller.errors import ConfigurationError
from inagg_controller.fabric.links import Change, Links
from inagg_controller.jobs.table import JobTable
from inagg_controller.managed import ManagedSwitch
from inagg_controller.publishing import Publisher

_log = logging.getLogger(__name__)

_TICK_S = 0.1


class LinkWatch:
    """Watches the links, whose states are in `links`. switches: at their ends, by name."""

    def __init__(
        self,
        links: Links,
        jobs: JobTable,
        switches: Mapping[str, ManagedSwitch],
        publisher: Publisher,
        clock: Callable[[], float],
    ) -> None:
        self._links = links
        self._jobs = jobs
        self._switches = switches
        self._publisher = publisher
        self._clock = clock

    async def find_links(self) -> None:
        """Send beacons until it is known which links are there. Raises ConfigurationError for a wrong cable."""
        while "unknown" in self._links.states.values():
            self.look()
            await asyncio.sleep(_TICK_S)
        wrong = self._links.wrong_cables()
        if wrong:
            raise ConfigurationError("; ".join(wrong))

    async def watch_links(self) -> None:
        """Watch the links, without end."""
        while True:
            self.look()
            await asyncio.sleep(_TICK_S)

    def look(self) -> None:
        """Send beacons that are due, and tell the job table which links have changed."""
        now = self._clock()
        for name, frames in self._links.due(now).items():
            self._switches[name].switch.send(frames)
        for change in self._links.tick(now):
            self._tell(change, now)

    def _tell(self, change: Change, now: float) -> None:
        if change.state == "up":
            _log.info("link %s is up", change.link)
            self._jobs.switches.link_up(change.link)
            self._jobs.changing.advance_all(now)
        else:
            names = [end.switch for end in change.link.ends if not self._switches[end.switch].connected]
            reason = f"switch {names[0]} is not connected" if names else change.reason
            _log.error("link %s is down: %s", change.link, reason)
            self._jobs.switches.link_down(change.link, now, reason)
        self._publisher.publish()
