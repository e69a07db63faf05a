# SPDX-License-Identifier: Apache-2.0
"""What the switches have counted, read from those that are connected."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from inagg_contract.aggregation import SHARED
from inagg_controller.errors import SwitchError, UnavailableError
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.placement import Placement
from inagg_controller.jobs.servers import JobKey
from inagg_controller.managed import ManagedSwitch
from inagg_controller.switch.client import Count

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobCounts:
    """What switches have counted of a job.

    admitted: rank -> contributions that its switch has admitted. displaced: by switch and whether the sum had expired
    (else it was evicted), how often another contribution took a shared slot of the job; without shared slots empty.
    """

    admitted: dict[int, Count] = field(default_factory=dict)
    displaced: dict[tuple[str, bool], int] = field(default_factory=dict)


class SwitchCounts:
    """Reads the counters of the switches, by name, and keeps what they had counted of jobs that have ended."""

    def __init__(self, switches: Mapping[str, ManagedSwitch]) -> None:
        self._switches = switches
        self._last: dict[JobKey, JobCounts] = {}  # of placements

    async def of_job(self, job: Job) -> JobCounts | None:
        """What the switches have counted of a job, for an ended job until its end; None if unknown."""
        if not job.placement.tree.switches:
            return None
        if job.state != "running":
            return self._last.get(job.placement.key)
        return await self._read(job.placement)

    async def keep(self, placement: Placement) -> None:
        """Keep what the switches have counted of a job at a place whose entries are about to be removed."""
        # A removal that is repeated no longer finds the counts of the switches where it succeeded.
        last, now = self._last.setdefault(placement.key, JobCounts()), await self._read(placement)
        last.admitted.update(now.admitted)
        last.displaced.update(now.displaced)

    def forget_all_but(self, jobs: Mapping[int, Job]) -> None:
        """Forget the jobs that are not among these."""
        for key in [key for key in self._last if key.id not in jobs]:
            del self._last[key]

    async def _read(self, placement: Placement) -> JobCounts:
        """The counts of a job at the switches that are connected."""
        leaves = [leaf for leaf in placement.tree.switches if leaf.ranks]
        counts = await self._of_connected(ManagedSwitch.read_admitted, [leaf.name for leaf in leaves])
        admitted = {
            rank: counts[leaf.name][placement.job, member]
            for leaf in leaves
            for member, rank in enumerate(leaf.ranks)
            if (placement.job, member) in counts.get(leaf.name, {})
        }
        displaced = {
            (name, expired): count.packets
            for name, found in (await self.displaced(placement)).items()
            for (number, expired), count in found.items()
            if number == placement.job
        }
        return JobCounts(admitted, displaced)

    async def indexed(
        self, failed: dict[str, str] | None = None
    ) -> Mapping[str, Mapping[str, Mapping[int, Count]]]:
        """The indexed counters of the connected switches without zeros: switch -> name -> index -> count.

        failed: receives the errors of switches that are connected and could not be read; they are not in the result.
        Raises UnavailableError if there are switches and none is connected.
        """
        if self._switches and not any(managed.connected for managed in self._switches.values()):
            raise UnavailableError(
                "; ".join(
                    f"switch {name}: {managed.connection.error}" for name, managed in self._switches.items()
                )
            )
        return await self._of_connected(ManagedSwitch.read_counters, failed=failed)

    async def edge_refusals(self) -> Mapping[str, Mapping[str, Mapping[int, Count]]]:
        """What edge ports of the connected switches have refused, without zeros: switch -> counter -> port -> count."""
        return await self._of_connected(ManagedSwitch.read_edge_refusals)

    async def traffic(self, most_s: float | None = None) -> Mapping[str, Mapping[str, Mapping[int, Count]]]:
        """Packets of jobs by what became of them, and results sent: switch -> counter -> port -> count.

        most_s: a switch that takes longer is left out.
        """
        return await self._of_connected(ManagedSwitch.read_traffic, most_s=most_s)

    async def admitted(self, most_s: float | None = None) -> Mapping[str, Mapping[tuple[int, int], Count]]:
        """Contributions that the connected switches have admitted: switch -> (job, member number) -> count.

        most_s: as for `traffic`.
        """
        return await self._of_connected(ManagedSwitch.read_admitted, most_s=most_s)

    async def displaced(self, at: Placement | None = None) -> Mapping[str, Mapping[tuple[int, bool], Count]]:
        """Contributions that took shared slots from jobs: switch -> (job, whether its sum had expired) -> count.

        at: only at its switches, if it has shared slots.
        """
        names = list(self._switches)
        if at is not None:
            names = list(at.tree.by_name) if at.aggregation == SHARED else []
        return await self._of_connected(ManagedSwitch.read_displaced, names)

    async def _of_connected(
        self,
        read: Callable[[ManagedSwitch], _T],
        names: Iterable[str] | None = None,
        failed: dict[str, str] | None = None,
        most_s: float | None = None,
    ) -> dict[str, _T]:
        """What `read` returns at switches, read at the same time, without those that are not connected or fail.

        names: of the switches; None: all. failed: see `indexed`. A failure is logged, too. most_s: see `traffic`.
        """
        found: dict[str, _T] = {}

        async def read_at(name: str) -> None:
            managed = self._switches[name]
            if managed.connected:
                try:
                    async with asyncio.timeout(most_s):
                        found[name] = await managed.read(read)
                except TimeoutError:
                    _log.debug("switch %s: its counters could not be read in %s s", name, most_s)
                except SwitchError as error:
                    _log.warning("switch %s: its counters could not be read: %s", name, error)
                    if failed is not None:
                        failed[name] = str(error)

        names = list(self._switches if names is None else names)
        await asyncio.gather(*map(read_at, names))
        return {name: found[name] for name in names if name in found}
