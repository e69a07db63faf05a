# SPDX-License-Identifier: Apache-2.0
"""The switches behind the workers' links, one or a tree of them, and the way of a packet from link to link."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from inagg_simulator.reference_switch import Sent, Up


class Switch(Protocol):
    def process(self, rank: int, datagram: bytes) -> list[tuple[int, bytes]]: ...


class Hop(NamedTuple):
    """A packet that leaves on a link, up or down."""

    link: int
    up: bool
    datagram: bytes


class Fabric(ABC):
    """What is behind the workers' links. Link r is worker r's; there may be others, between switches."""

    @abstractmethod
    def up(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """What leaves because a packet has arrived at a link's upper end."""

    @abstractmethod
    def down(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """The same at the lower end, where no worker is."""


@dataclass
class Star(Fabric):
    """One switch."""

    switch: Switch

    def up(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """See Fabric."""
        return [Hop(rank, False, result) for rank, result in self.switch.process(link, datagram)]

    def down(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """See Fabric."""
        raise AssertionError("a star has no links but the workers'")


# A switch as its members: workers, by rank, and switches.
Tree = tuple["int | Tree", ...]


def nested(*sizes: int) -> Tree:
    """A tree with so many members at the root, and so on down: nested(2, 4) are two racks of four workers."""

    def switch(level: int, first: int) -> Tree:
        if level == len(sizes) - 1:
            return tuple(range(first, first + sizes[level]))
        workers = math.prod(sizes[level + 1 :])
        return tuple(switch(level + 1, first + member * workers) for member in range(sizes[level]))

    return switch(0, 0)


class TreeSwitch(Protocol):
    """Aggregator (reference_switch.py), P4Switch (p4_switch.py), or ServedSwitch (servers.py)."""

    def contribute(self, member: int, datagram: bytes) -> Sent: ...
    def result(self, datagram: bytes) -> Sent: ...


@dataclass(frozen=True)
class Parent:
    """A switch above: its number, and this switch's number among its members."""

    switch: int
    member: int


@dataclass(eq=False)
class Place:
    """A switch's place in the tree. members: ranks, and switches."""

    number: int
    members: "list[int | Place]"
    parents: list[Parent] = field(default_factory=list)

    @property
    def above(self) -> list[int]:
        """This switch's member numbers at the switches above."""
        return [parent.member for parent in self.parents]


def places(tree: Tree, roots: int = 1) -> list[Place]:
    """All switches, those below first. roots: how many copies of the top switch share the chunks."""
    found: list[Place] = []

    def add(switch: Tree, copies: int) -> list[Place]:
        members = [member if isinstance(member, int) else add(member, 1)[0] for member in switch]
        made = [Place(len(found) + copy, members) for copy in range(copies)]
        found.extend(made)
        for number, member in enumerate(members):
            if isinstance(member, Place):
                member.parents = [Parent(place.number, number) for place in made]
        return made

    add(tree, roots)
    return found


class TreeFabric(Fabric):
    """Link r leads from worker r to its leaf; the others lead from switch to switch."""

    def __init__(self, tree: Sequence[Place], make: Callable[[Place], TreeSwitch]) -> None:
        self.places = tree
        self.switches = [make(place) for place in tree]
        self.leaf = {  # by rank
            rank: Parent(place.number, member)
            for place in tree
            for member, rank in enumerate(place.members)
            if isinstance(rank, int)
        }
        self.packets: Counter[tuple[int, bool]] = Counter()  # by link, up or not, that have arrived
        self._links = [(place, parent) for place in tree for parent in place.parents]

    @property
    def members(self) -> list[int]:
        """The number of each rank at its leaf."""
        return [self.leaf[rank].member for rank in range(len(self.leaf))]

    def up(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """See Fabric."""
        self.packets[link, True] += 1
        to = self.leaf[link] if link in self.leaf else self._links[link - len(self.leaf)][1]
        sent = self.switches[to.switch].contribute(to.member, datagram)
        return self._hops(self.places[to.switch], sent)

    def down(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """See Fabric."""
        self.packets[link, False] += 1
        below, _ = self._links[link - len(self.leaf)]
        return self._hops(below, self.switches[below.number].result(datagram))

    def _hops(self, at: Place, sent: Sent) -> list[Hop]:
        hops = []
        for receiver, datagram in sent:
            if isinstance(receiver, Up):
                hops.append(Hop(self._link(at, at.parents[receiver.parent]), True, datagram))
                continue
            below = at.members[receiver]
            link = self._link(below, Parent(at.number, receiver)) if isinstance(below, Place) else below
            hops.append(Hop(link, False, datagram))
        return hops

    def _link(self, below: Place, parent: Parent) -> int:
        return len(self.leaf) + self._links.index((below, parent))
