# SPDX-License-Identifier: Apache-2.0
"""What effects and placements have in switches."""

from collections.abc import Mapping

from inagg_controller.jobs.effects import Effect, Regroup
from inagg_controller.switch.entries import Entity, JobEntries, TableEntry

Placed = tuple[str, Entity]  # a switch and what is in it


def entities_of(effect: Effect) -> list[Placed]:
    """What an effect inserts or removes, in the order of insertion."""
    if isinstance(effect, Regroup):
        return list(effect.groups.items())
    return in_stages(effect.entries)


def in_stages(entries: Mapping[str, JobEntries]) -> list[Placed]:
    """The entities of a placement, in the order of their insertion."""
    return [(name, entity) for name, each in entries.items() for stage in each.stages for entity in stage]


def name_of(placed: Placed) -> object:
    """What its switch knows an entity by."""
    name, entity = placed
    return name, (entity.table, entity.match) if isinstance(entity, TableEntry) else entity.group
