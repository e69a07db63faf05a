# SPDX-License-Identifier: Apache-2.0
"""The injected losses (docs/protocol.md, 8), and the entries that a change of them writes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from inagg_controller.errors import InvalidRequestError
from inagg_controller.switch.entries import LOSS_TABLES, TableEntry, loss_entry

TRAFFIC = {"aggregation": (True,), "other": (False,), "all": (True, False)}


@dataclass(frozen=True, slots=True)
class Place:
    """Where packets are lost: a port, a direction as seen from the switch, and a traffic class."""

    port: int
    direction: str
    aggregation: bool


@dataclass(slots=True)
class LossChange:
    """Entries to write, and the losses in force after that."""

    losses: dict[Place, float]
    insert: list[TableEntry] = field(default_factory=list)
    modify: list[TableEntry] = field(default_factory=list)
    remove: list[TableEntry] = field(default_factory=list)


def _entry(place: Place, probability: float) -> TableEntry:
    return loss_entry(place.port, place.direction, place.aggregation, probability)


class Losses:
    """The losses in force. After the switch has a change's entries, `commit` puts it in force."""

    def __init__(self) -> None:
        self._losses: dict[Place, float] = {}

    @property
    def entries(self) -> list[TableEntry]:
        """The entries of all losses in force."""
        return [_entry(place, probability) for place, probability in self._losses.items()]

    def __iter__(self) -> Iterator[tuple[Place, float]]:
        return iter(self._losses.items())

    def setting(self, port: int, direction: str, traffic: str, probability: float) -> LossChange:
        """The change that loses packets of a traffic class with this probability. Raises InvalidRequestError."""
        if direction not in LOSS_TABLES or traffic not in TRAFFIC or not 0 <= probability <= 1:
            raise InvalidRequestError(f"no such loss: {direction}, {traffic}, probability {probability}")
        wanted = {Place(port, direction, aggregation): probability for aggregation in TRAFFIC[traffic]}
        return self._change(wanted)

    def clearing(self) -> LossChange:
        """The change that removes all losses."""
        return self._change(dict.fromkeys(self._losses, 0.0))

    def commit(self, change: LossChange) -> None:
        """Put a change in force: the switch has its entries."""
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
