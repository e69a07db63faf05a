# SPDX-License-Identifier: Apache-2.0
"""A switch in memory, with the interface that the controller's service uses; no P4Runtime."""

import threading
from collections.abc import Callable, Mapping, Sequence

from inagg_controller.errors import SwitchRefusedError, SwitchUnreachableError
from inagg_controller.switch.client import Count, SlotVersion
from inagg_controller.switch.entries import Entity, MulticastGroup, TableEntry


class MemorySwitch:
    """Keeps the entities that are inserted. A test sees a batch, which the service sends from a thread, whole or not.

    refuse, refuse_removal: entities that are refused. away: every call fails. calls: each entity that was inserted,
    modified or removed. refused: counters beside `started`. slots, hides_slots:
    for read_slots. emit: gets what the controller sends; on_packet gives it a
    frame.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.entities: dict[object, Entity] = {}
        self.threads = 1
        self.connections = 0
        self.programmed = False
        self.refuse: Callable[[Entity], bool] = lambda entity: False
        self.refuse_removal: Callable[[Entity], bool] = lambda entity: False
        self.away = False
        self.admitted: dict[tuple[int, int], Count] = {}
        self.displaced: dict[tuple[int, bool], Count] = {}
        self.refused: dict[str, dict[int, Count]] = {}
        self.slots: dict[int, SlotVersion] = {}
        self.hides_slots = False
        self.calls: list[tuple[str, Entity]] = []
        self.emit: Callable[[bytes], None] = lambda frame: None
        self.on_packet: Callable[[bytes], None] = lambda frame: None
        self._on_lost: Callable[[SwitchUnreachableError], None] | None = None

    def connect(
        self,
        on_lost: Callable[[SwitchUnreachableError], None],
        on_packet: Callable[[bytes], None] = lambda frame: None,
        *,
        keep: bool = False,
    ) -> bool:
        self._check()
        kept = keep and self.programmed
        if not kept:
            self.entities.clear()
        self.programmed = True
        self.connections += 1
        self._on_lost, self.on_packet = on_lost, on_packet
        return kept

    def read(self) -> Sequence[Entity]:
        self._check()
        with self._lock:
            return list(self.entities.values())

    def send(self, frames: Sequence[bytes]) -> None:
        for frame in frames if not self.away else ():
            self.emit(frame)

    def insert(self, entities: Sequence[Entity]) -> None:
        with self._lock:
            for entity in entities:
                self._check(self.refuse(entity))
                assert self._key(entity) not in self.entities
                self.entities[self._key(entity)] = entity
                self.calls.append(("insert", entity))

    def modify(self, entities: Sequence[Entity]) -> None:
        with self._lock:
            for entity in entities:
                self._check(self.refuse(entity))
                assert self._key(entity) in self.entities
                self.entities[self._key(entity)] = entity
                self.calls.append(("modify", entity))

    def remove(self, entities: Sequence[Entity]) -> None:
        with self._lock:
            for entity in entities:
                self._check(self.refuse_removal(entity))
                if self.entities.pop(self._key(entity), None) is not None:
                    self.calls.append(("remove", entity))

    def read_counters(
        self, ports: Sequence[int], names: Sequence[str] | None = None
    ) -> Mapping[str, Mapping[int, Count]]:
        self._check()
        counts = {"started": {port: Count(port, 100 * port) for port in ports if port < 3}, **self.refused}
        return {name: count for name, count in counts.items() if names is None or name in names}

    def read_admitted(self) -> Mapping[tuple[int, int], Count]:
        self._check()
        return self.admitted

    def read_displaced(self) -> Mapping[tuple[int, bool], Count]:
        self._check()
        return self.displaced

    def read_slots(self, versions: Sequence[int]) -> Mapping[int, SlotVersion]:
        self._check(self.hides_slots)
        return {index: self.slots.get(index, SlotVersion(0, 0)) for index in versions}

    def close(self) -> None:
        pass

    def restart(self) -> None:
        """Lose everything, as a switch process that ends does."""
        assert self._on_lost is not None, "the switch is not connected"
        self.entities.clear()
        self.programmed = False
        self._on_lost(SwitchUnreachableError("the switch closed the connection"))

    def in_table(self, table: str) -> list[TableEntry]:
        """The entries of a table."""
        with self._lock:
            return [
                entity
                for entity in self.entities.values()
                if isinstance(entity, TableEntry) and entity.table == table
            ]

    @property
    def groups(self) -> list[int]:
        """The numbers of the multicast groups, in order."""
        with self._lock:
            return sorted(each.group for each in self.entities.values() if isinstance(each, MulticastGroup))

    def replicas(self, group: int) -> tuple[tuple[int, int], ...]:
        """(port, replication id) of each copy that a multicast group makes."""
        entity = self.entities[group]
        assert isinstance(entity, MulticastGroup)
        return entity.replicas

    @staticmethod
    def _key(entity: Entity) -> object:
        return (
            entity.group
            if isinstance(entity, MulticastGroup)
            else (entity.table, tuple(sorted(entity.match)))
        )

    def _check(self, refused: bool = False) -> None:
        if self.away:
            raise SwitchUnreachableError("the switch is away")
        if refused:
            raise SwitchRefusedError("the switch is full")
