# SPDX-License-Identifier: Apache-2.0
"""Carries out what the job table has decided about switches."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from inagg_controller.counts import SwitchCounts
from inagg_controller.errors import SwitchRefusedError, SwitchUnreachableError
from inagg_controller.jobs.effects import Effect, Install, Regroup, Remove
from inagg_controller.jobs.table import JobTable
from inagg_controller.managed import ManagedSwitch
from inagg_controller.publishing import Publisher
from inagg_controller.switch.entries import Entity

_log = logging.getLogger(__name__)


class EffectDriver:
    """Carries out effects: those of a job one after another, those of different jobs at the same time.

    So a switch that does not answer holds up its own jobs only.
    """

    def __init__(
        self,
        jobs: JobTable,
        switches: Mapping[str, ManagedSwitch],
        counts: SwitchCounts,
        publisher: Publisher,
        clock: Callable[[], float],
    ) -> None:
        self._jobs = jobs
        self._switches = switches
        self._counts = counts
        self._publisher = publisher
        self._clock = clock
        self._busy: set[int] = set()  # jobs

    async def carry_out_effects(self) -> None:
        """Carry out effects as they come, without end."""
        effects, work = self._jobs.switches.effects, self._publisher.work
        async with asyncio.TaskGroup() as group:
            while True:
                await work.wait()
                work.clear()
                for effect in list(effects):
                    if effect.job not in self._busy:
                        self._busy.add(effect.job)
                        effects.remove(effect)
                        group.create_task(self._take_turn(effect))

    async def _take_turn(self, effect: Effect) -> None:
        await self._carry_out(effect)
        self._busy.remove(effect.job)
        self._publisher.work.set()

    async def _carry_out(self, effect: Effect) -> None:
        error = None
        try:
            await self._perform(effect)
        except SwitchRefusedError as refusal:
            error = str(refusal)
            _log.error("job %d: %s", effect.job, error)
        except SwitchUnreachableError:  # the job table knows, and has made this effect void
            return
        self._jobs.switches.done(effect, self._clock(), error)
        if isinstance(effect, Install) and error is None:
            _log.info("job %d: entries installed", effect.job)
        self._publisher.publish()

    async def _perform(self, effect: Effect) -> None:
        """Carry out an effect, one switch after another.

        Raises SwitchRefusedError of the first switch that refuses, and SwitchUnreachableError also when another switch
        of the job is lost meanwhile: the effect is void then.
        """
        if isinstance(effect, Install):
            for name, entries in effect.entries.items():
                for stage in entries.stages:
                    await self._write(effect, name, self._switches[name].switch.insert, stage)
        elif isinstance(effect, Regroup):
            for name, group in effect.groups.items():
                await self._write(effect, name, self._switches[name].switch.modify, (group,))
        else:
            await self._remove(effect)

    async def _remove(self, effect: Remove) -> None:
        """Remove entries, also at the switches after one that refuses it."""
        placement = self._jobs.switches.placement_of(effect)
        if placement is not None:
            await self._counts.keep(placement)
        refusals = []
        for name, entries in reversed([*effect.entries.items()]):
            try:
                for stage in reversed(entries.stages):
                    await self._write(effect, name, self._switches[name].switch.remove, stage)
            except SwitchRefusedError as refusal:
                refusals.append(refusal)
        if refusals:
            raise refusals[0]

    async def _write(
        self, effect: Effect, name: str, write: Callable[[Sequence[Entity]], None], entities: Sequence[Entity]
    ) -> None:
        if self._jobs.switches.placement_of(effect) is None:
            raise SwitchUnreachableError(f"job {effect.job} has lost a switch")
        await self._switches[name].connection.call(partial(write, entities))
