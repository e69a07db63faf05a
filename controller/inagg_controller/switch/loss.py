# SPDX-License-Identifier: Apache-2.0
"""Which losses are injected (docs/protocol.md, 8), and what a change of them means for the switch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from inagg_controller.errors import InvalidRequestError
from inagg_controller.switch.entries import LOSS_TABLES, TableEntry, loss_entry

TRAFFIC = {"aggregation": (True,), "other": (False,), "all": (True, False)}


@dataclass(frozen=True, slots=True)
class Place:
    """Where packets are lost: a port, a direction seen from the switch, and a class of traffic."""

    port: int
    direction: str
    aggregation: bool


@dataclass(slots=True)
class LossChange:
    """Entries to write, and the losses that are then in force."""

    losses: dict[Place, float]
    insert: list[TableEntry] = field(default_factory=list)
    modify: list[TableEntry] = field(default_factory=list)
    remove: list[TableEntry] = field(default_factory=list)


def _entry(place: Place, probability: float) -> TableEntry:
    return loss_entry(place.port, place.direction, place.aggregation, probability)


class Losses:
    """The losses in force. A change takes effect here when `commit` is told that the switch has it."""

    def __init__(self) -> None:
        self._losses: dict[Place, float] = {}

    @property
    def entries(self) -> list[TableEntry]:
        """Every entry that the switch should have."""
        return [_entry(place, probability) for place, probability in self._losses.items()]

    def __iter__(self) -> Iterator[tuple[Place, float]]:
        return iter(self._losses.items())

    def setting(self, port: int, direction: str, traffic: str, probability: float) -> LossChange:
        """Lose packets of some traffic with this probability, 0 for none."""
        if direction not in LOSS_TABLES or traffic not in TRAFFIC or not 0 <= probability <= 1:
            raise InvalidRequestError(f"no such loss: {direction}, {traffic}, probability {probability}")
        wanted = {Place(port, direction, aggregation): probability for aggregation in TRAFFIC[traffic]}
        return self._change(wanted)

    def clearing(self) -> LossChange:
        """Lose nothing any more."""
        return self._change(dict.fromkeys(self._losses, 0.0))

    def commit(self, change: LossChange) -> None:
        """The switch has the entries of this change."""
        self._losses = change.losses

    def _change(self, wanted: Mapping[Place, float]) -> LossChange:
        change = LossChange(dict(self._losses))
        for place, probability in wanted.items():
            known = change.losses.pop(place, None)
            if probability:
                change.losses[place] = probability
                (change.insert if known is None else change.modify).append(_entry(place, probability))
            elif known is not None:
                change.remove.append(_entry(place, known))
        return change
