# SPDX-License-Identifier: Apache-2.0
"""Has the switches forward ordinary traffic by the tree of the job table (docs/protocol.md, 7.3)."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from inagg_controller.errors import SwitchRefusedError, SwitchUnreachableError
from inagg_controller.fabric.ordinary import OrdinaryTree
from inagg_controller.jobs.table import JobTable
from inagg_controller.managed import ManagedSwitch
from inagg_controller.switch.entries import Entity, TableEntry, binding_entries, flood_group

_log = logging.getLogger(__name__)

_TICK_S = 0.1
# So long a switch that does not answer holds up the others, and one that refuses is left alone.
_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Written:
    """What a switch has: the bindings of a tree, and the ports to which it floods."""

    tree: OrdinaryTree
    flooded: tuple[int, ...]


class Forwarding:
    """What the switches have, by name, and what they should have."""

    def __init__(self, jobs: JobTable, switches: Mapping[str, ManagedSwitch]) -> None:
        self._jobs = jobs
        self._switches = switches
        self._written: dict[str, _Written] = {}
        self._busy: set[str] = set()

    def entities(self, name: str) -> list[Entity]:
        """What a switch is given when it is connected. On its thread."""
        tree = self._jobs.switches.ordinary
        self._written[name] = there = _Written(tree, tree.flooded(name))
        return [*binding_entries(tree.bindings(name)), flood_group(there.flooded)]

    async def follow_tree(self) -> None:
        """Bring switches up to date, without end."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._update(self._jobs.switches.ordinary, group)
                await asyncio.sleep(_TICK_S)

    async def _update(self, tree: OrdinaryTree, group: asyncio.TaskGroup) -> None:
        """Give the switches that are connected what they lack of a tree.

        First all of them stop to flood to links that have left the tree, lest old and new links close a circle. While
        one of them has not, nothing else changes, unless the tree has no link to it: nobody floods to it then.
        """
        stale = [
            name
            for name, there in list(self._written.items())
            if there.tree is not tree and self._switches[name].connected
        ]
        for narrow in (True, False):
            idle = [name for name in stale if name not in self._busy]
            self._busy.update(idle)
            tasks = [group.create_task(self._write(name, tree, narrow)) for name in idle]
            if tasks:
                await asyncio.wait(tasks, timeout=_PATIENCE_S)
            if any(not self._is_within(name, tree) and tree.reaches(name) for name in stale):
                return

    def _is_within(self, name: str, tree: OrdinaryTree) -> bool:
        """Whether a switch floods to no link outside a tree."""
        return name not in self._busy and {*self._written[name].flooded} <= {*tree.flooded(name)}

    async def _write(self, name: str, tree: OrdinaryTree, narrow: bool) -> None:
        there, flooded = self._written[name], tree.flooded(name)
        if narrow:
            tree, flooded = there.tree, tuple(port for port in there.flooded if port in flooded)
        try:
            await self._switches[name].connection.call(partial(self._change, name, _Written(tree, flooded)))
        except SwitchUnreachableError:
            pass  # it is given all when it is connected again
        except SwitchRefusedError as error:
            _log.error("switch %s: ordinary traffic: %s", name, error)
            await asyncio.sleep(_PATIENCE_S)
        self._busy.remove(name)

    def _change(self, name: str, wanted: _Written) -> None:
        """On the switch's thread, where no other change is under way."""
        switch, there = self._switches[name].switch, self._written[name]
        if there.tree is not wanted.tree:
            old = _binding_entries(there.tree, name)
            new = _binding_entries(wanted.tree, name)
            switch.modify([entry for key, entry in new.items() if old[key] != entry])
        if there.flooded != wanted.flooded:
            switch.modify([flood_group(wanted.flooded)])
        self._written[name] = wanted


def _binding_entries(tree: OrdinaryTree, name: str) -> dict[object, TableEntry]:
    """By table and key, which are the same in all trees of a topology."""
    return {(entry.table, entry.match): entry for entry in binding_entries(tree.bindings(name))}
