# SPDX-License-Identifier: Apache-2.0
"""Compares a switch that went on while the controller did not run with what it should have."""

from collections.abc import Iterable, Mapping

from inagg_controller.switch.client import Switch
from inagg_controller.switch.entries import Entity, MulticastGroup, TableEntry


def reconcile(switch: Switch, base: Iterable[Entity], jobs: Mapping[int, Iterable[Entity]]) -> set[int]:
    """Leave in a switch the entries that it needs before any job, and what it has of jobs.

    base: the former. jobs: by number, what it should have of each. Returns the jobs of which something is missing.
    """
    there = {_normal(entity): entity for entity in switch.read()}
    needed = {_normal(entity): entity for entity in base}
    wanted = {number: {_normal(entity) for entity in entities} for number, entities in jobs.items()}
    known = needed.keys() | set().union(*wanted.values())
    unwanted = [entity for normal, entity in there.items() if normal not in known]
    # No packet is to be copied to a group that is no more.
    switch.remove([entity for entity in unwanted if isinstance(entity, TableEntry)])
    switch.remove([entity for entity in unwanted if isinstance(entity, MulticastGroup)])
    switch.insert([entity for normal, entity in needed.items() if normal not in there])
    return {number for number, entities in wanted.items() if not entities <= there.keys()}


def _normal(entity: Entity) -> Entity:
    """Equal for entities that do the same: a switch keeps no order."""
    if isinstance(entity, MulticastGroup):
        return MulticastGroup(entity.group, tuple(sorted(entity.replicas)))
    return TableEntry(entity.table, tuple(sorted(entity.match)), entity.action, tuple(sorted(entity.params)))
