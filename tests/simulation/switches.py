# SPDX-License-Identifier: Apache-2.0
"""The switches of a world: compiled P4 programs with the entries that the controller makes."""

from collections.abc import Iterable

from inagg_controller.fabric.ordinary import OrdinaryTree
from inagg_controller.fabric.topology import SwitchNode, Topology
from inagg_controller.switch.entries import (
    Entity,
    TableEntry,
    aggregator_entries,
    binding_entries,
    flood_group,
)
from inagg_simulator import p4_switch
from inagg_switch.switch import Switch
from tests.conformance.examples import WORDS

SLOT_VERSIONS, SHARED_SLOTS = 64, 16
# What says whose a slot is, and since when.
_REGISTERS = ("epoch", "chunk", "members", "final", "owner", "time")


class Program:
    """An instance of the P4 program."""

    def __init__(self) -> None:
        self.switch: Switch = p4_switch.load(WORDS, SLOT_VERSIONS)
        self._slots = [self.switch.register(f"slot_{name}") for name in _REGISTERS]

    def empty_slots(self) -> None:
        """The slots of a switch that has just started."""
        for slots in self._slots:
            for index in range(SLOT_VERSIONS):
                slots[index] = 0


class Programs:
    """Instances of the P4 program, which worlds use one after another."""

    def __init__(self) -> None:
        self._made: list[Program] = []

    def take(self, number: int) -> list[Program]:
        """So many. Their slots and tables are empty if every world has been closed."""
        while len(self._made) < number:
            self._made.append(Program())
        return self._made[:number]

    def close(self) -> None:
        """Free them."""
        for program in self._made:
            program.switch.close()


class SwitchBox:
    """A switch. alive: it runs. still: it runs, and stands still. heard_at: when it has last answered, for those who
    ask it all the time. entities: of jobs, that it has."""

    def __init__(self, node: SwitchNode, topology: Topology, program: Program) -> None:
        self.name = node.name
        self.alive, self.still = True, False
        self.entities: set[Entity] = set()
        self._program = program
        self._used = False
        self._base: list[Entity] = [*aggregator_entries(node.ip, node.mac)]
        self._tree = OrdinaryTree.shortest(topology)
        self.start()

    @property
    def works(self) -> bool:
        """Whether it passes packets and answers."""
        return self.alive and not self.still

    def forward(self, tree: OrdinaryTree) -> None:
        """Forward ordinary traffic by a tree from now on, if it runs and is told."""
        if self.works and tree is not self._tree:
            self._erase(self._ordinary())
            self._tree = tree
            self._write(self._ordinary())

    def _ordinary(self) -> list[Entity]:
        tree = self._tree
        return [*binding_entries(tree.bindings(self.name)), flood_group(tree.flooded(self.name))]

    def insert(self, entities: Iterable[Entity]) -> None:
        """Insert entries of a job."""
        for entity in entities:
            self._write([entity])
            self.entities.add(entity)

    def remove(self, entities: Iterable[Entity]) -> None:
        """Remove those that are there."""
        there = [entity for entity in entities if entity in self.entities]
        self._erase(there)
        self.entities.difference_update(there)

    def die(self) -> None:
        """What is in its tables and slots is gone."""
        self.close()
        self.alive = False

    def start(self) -> None:
        """It starts, and has what a switch needs before any job."""
        self.alive = True
        self._write([*self._base, *self._ordinary()])

    def close(self) -> None:
        """Leave the program as a switch has it that has just started."""
        self._erase([*self.entities, *([*self._base, *self._ordinary()] if self.alive else ())])
        self.entities.clear()
        if self._used:
            self._program.empty_slots()
            self._used = False

    def process(self, port: int, frame: bytes, now: float) -> list[tuple[int, bytes]]:
        """The port and frame of each frame that leaves."""
        if not self.works:
            return []
        self._used = True
        return self._program.switch.process(port, frame, now)

    def _write(self, entities: Iterable[Entity]) -> None:
        for entity in entities:
            if isinstance(entity, TableEntry):
                self._program.switch.insert(
                    entity.table, dict(entity.match), entity.action, dict(entity.params)
                )
            elif entity.replicas:
                self._program.switch.multicast_group(entity.group, entity.replicas)

    def _erase(self, entities: Iterable[Entity]) -> None:
        for entity in entities:
            if isinstance(entity, TableEntry):
                self._program.switch.delete(entity.table, dict(entity.match))
            elif entity.replicas:
                self._program.switch.multicast_group(entity.group, ())
