# SPDX-License-Identifier: Apache-2.0
"""Watches what the switches' edge ports refuse: packets with another station's address, which a host must not send."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from inagg_contract.counters import EDGE_REFUSALS
from inagg_controller.counts import SwitchCounts
from inagg_controller.switch.client import Count

_log = logging.getLogger(__name__)

_INTERVAL_S = 5.0
_REPORT_S = 60.0  # between two lines about one port
_RECENT_S = 600.0


@dataclass(slots=True)
class PortRefusals:
    """What a port has refused since the controller began, by counter. last: when the newest were seen."""

    packets: Counter[str] = field(default_factory=Counter)
    last: float = 0.0
    next_report: float = 0.0
    unreported: Counter[str] = field(default_factory=Counter)


class RefusalWatch:
    """Reads the counters, and logs what is new: one line a minute and port.

    kept: whether a switch has kept its program, and its counters, from before this controller. What the first look
    finds there is not new. clock: seconds.
    """

    def __init__(self, counts: SwitchCounts, kept: Callable[[str], bool], clock: Callable[[], float]) -> None:
        self._counts = counts
        self._kept = kept
        self._clock = clock
        self._read: set[str] = set()  # switches
        self._seen: dict[tuple[str, str, int], int] = {}
        self._ports: dict[tuple[str, int], PortRefusals] = {}

    async def watch_refusals(self) -> None:
        """Watch, without end."""
        while True:
            await self.look()
            await asyncio.sleep(_INTERVAL_S)

    async def look(self) -> None:
        """Read the counters of the switches that are connected, and log what is new."""
        found = await self._counts.edge_refusals()
        now = self._clock()
        for switch, counters in found.items():
            self._note(switch, counters, now)
        for (switch, port), refusals in self._ports.items():
            if refusals.unreported and now >= refusals.next_report:
                what = ", ".join(f"{name} {count}" for name, count in sorted(refusals.unreported.items()))
                _log.warning(
                    "switch %s: port %d refuses packets: %s; a host there sends what no host may (docs/counters.md)",
                    *(switch, port, what),
                )
                refusals.unreported.clear()
                refusals.next_report = now + _REPORT_S

    def recent(self, switch: str) -> dict[int, tuple[PortRefusals, float]]:
        """The ports of a switch that have refused packets in the last ten minutes, and how long ago the last ones."""
        now = self._clock()
        return {
            port: (refusals, now - refusals.last)
            for (name, port), refusals in sorted(self._ports.items())
            if name == switch and now - refusals.last <= _RECENT_S
        }

    def _note(self, switch: str, counters: Mapping[str, Mapping[int, Count]], now: float) -> None:
        old = switch not in self._read and self._kept(switch)
        self._read.add(switch)
        for name in EDGE_REFUSALS:
            for port, count in counters.get(name, {}).items():
                before = self._seen.get((switch, name, port), 0)
                self._seen[switch, name, port] = count.packets
                # A switch that starts its program afresh counts from 0 again.
                new = count.packets - before if count.packets >= before else count.packets
                if new and not old:
                    refusals = self._ports.setdefault((switch, port), PortRefusals())
                    refusals.packets[name] += new
                    refusals.unreported[name] += new
                    refusals.last = now
