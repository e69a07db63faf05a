# SPDX-License-Identifier: Apache-2.0
"""Ways with one slot, as `test_change_rules` explores them: a switch, a tree of switches, shared slots before a server.

Each does what the slot rules say. Packets on the way between its parts arrive any number of times, at any later time,
or never.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from inagg_simulator.slot_rules import shared
from inagg_simulator.slot_rules.packets import Packet
from inagg_simulator.slot_rules.shared import Slot
from inagg_simulator.slot_rules.versions import Leaves, Version, contribute, keep
from tests.conformance.exploration import replaced

SLOTS = 1
FIRST_CHUNK = 2**32 - 2  # of each way
EMPTY = Version(epoch=0, chunk=2**31 - 1)
Versions = tuple[Version, Version]
NEW: Versions = (EMPTY, EMPTY)


class Sent(NamedTuple):
    """A result that leaves: of which chunk field, to which ranks, and what it says."""

    chunk: int
    ranks: tuple[int, ...]
    checksum: int


class Step(NamedTuple):
    """What a way may do: its parts then, and what leaves."""

    parts: Any
    sent: tuple[Sent, ...] = ()


class Way(Protocol):
    """A kind of way. Its parts are a hashable value."""

    def new(self) -> Any:
        """Its parts when it begins."""

    def arrive(self, parts: Any, packet: Packet) -> Iterator[Step]:
        """A rank's contribution arrives: what may happen."""

    def within(self, parts: Any) -> Iterator[Step]:
        """What may happen without a packet of a rank."""

    def restarts(self, parts: Any) -> Iterator[Any]:
        """Its parts when one of them has been started again, empty."""

    def without_packets(self, parts: Any) -> Any:
        """Its parts when all packets between them are lost."""


def _add(held: Versions, packet: Packet, members: int, *, root: bool) -> tuple[Versions, Version, Leaves]:
    """A contribution arrives at a switch or server. Returns its versions, that of the chunk, and what leaves."""
    parity = packet.chunk % 2
    version, _, leaves = contribute(
        held[parity], held[1 - parity], packet, SLOTS, members, first_chunk=FIRST_CHUNK, root=root
    )
    return _held(held, parity, version), version, leaves


def _held(held: Versions, parity: int, version: Version) -> Versions:
    return (version, held[1]) if parity == 0 else (held[0], version)


class OneSwitch:
    """A switch. Its parts are its versions."""

    def __init__(self, workers: int) -> None:
        self._ranks = tuple(range(workers))

    def new(self) -> Versions:
        """See Way."""
        return NEW

    def arrive(self, parts: Versions, packet: Packet) -> Iterator[Step]:
        """See Way."""
        held, version, leaves = _add(parts, packet, (1 << len(self._ranks)) - 1, root=True)
        left = leaves in (Leaves.RESULT, Leaves.RESULT_AGAIN)
        yield Step(held, (Sent(packet.chunk, self._ranks, version.sum.checksum),) if left else ())

    def within(self, parts: Versions) -> Iterator[Step]:
        """See Way."""
        yield from ()

    def restarts(self, parts: Versions) -> Iterator[Versions]:
        """See Way."""
        yield NEW

    def without_packets(self, parts: Versions) -> Versions:
        """See Way."""
        return parts


class TreeParts(NamedTuple):
    """up: partial sums under way, with the leaf's bit; down: results under way, by leaf."""

    leaves: tuple[Versions, ...]
    root: Versions = NEW
    up: frozenset[Packet] = frozenset()
    down: frozenset[tuple[int, Packet]] = frozenset()


class TwoLeaves:
    """Leaves below one root. at: the ranks of each."""

    def __init__(self, *at: tuple[int, ...]) -> None:
        self._at = at

    def new(self) -> TreeParts:
        """See Way."""
        return TreeParts((NEW,) * len(self._at))

    def arrive(self, parts: TreeParts, packet: Packet) -> Iterator[Step]:
        """See Way."""
        rank = packet.members.bit_length() - 1
        leaf = next(number for number, ranks in enumerate(self._at) if rank in ranks)
        ranks = self._at[leaf]
        own = packet._replace(members=1 << ranks.index(rank))
        held, version, leaves = _add(parts.leaves[leaf], own, (1 << len(ranks)) - 1, root=False)
        parts = parts._replace(leaves=replaced(parts.leaves, leaf, held))
        if leaves is Leaves.PARTIAL:
            partial = packet._replace(members=1 << leaf, sum=version.sum)
            yield Step(parts._replace(up=parts.up | {partial}))
        elif leaves is Leaves.RESULT_AGAIN:
            yield Step(parts, (Sent(packet.chunk, ranks, version.sum.checksum),))
        else:
            yield Step(parts)

    def within(self, parts: TreeParts) -> Iterator[Step]:
        """See Way."""
        for partial in parts.up:
            held, version, leaves = _add(parts.root, partial, (1 << len(self._at)) - 1, root=True)
            result = partial._replace(members=0, sum=version.sum)
            everybody = range(len(self._at))
            to = {Leaves.RESULT: everybody, Leaves.RESULT_AGAIN: [partial.members.bit_length() - 1]}
            down = parts.down | {(leaf, result) for leaf in to.get(leaves, ())}
            yield Step(parts._replace(root=held, down=down))
        for leaf, result in parts.down:
            parity, ranks = result.chunk % 2, self._at[leaf]
            version, _, leaves = keep(parts.leaves[leaf][parity], result, (1 << len(ranks)) - 1)
            held = _held(parts.leaves[leaf], parity, version)
            left = leaves is Leaves.RESULT
            sent = (Sent(result.chunk, ranks, version.sum.checksum),) if left else ()
            yield Step(parts._replace(leaves=replaced(parts.leaves, leaf, held)), sent)

    def restarts(self, parts: TreeParts) -> Iterator[TreeParts]:
        """See Way."""
        yield parts._replace(root=NEW)
        for leaf in range(len(self._at)):
            yield parts._replace(leaves=replaced(parts.leaves, leaf, NEW))

    def without_packets(self, parts: TreeParts) -> TreeParts:
        """See Way."""
        return parts._replace(up=frozenset(), down=frozenset())


class SharedParts(NamedTuple):
    """up: sums under way to the server."""

    slot: Slot = Slot()
    server: Versions = NEW
    up: frozenset[Packet] = frozenset()


class SharedSlot:
    """A switch with one shared slot, which others may take at any moment, before a server."""

    def __init__(self, workers: int) -> None:
        self._ranks = tuple(range(workers))
        self._all = (1 << workers) - 1

    def new(self) -> SharedParts:
        """See Way."""
        return SharedParts()

    def arrive(self, parts: SharedParts, packet: Packet) -> Iterator[Step]:
        """See Way."""
        for expired in (False, True):
            slot, left, _ = shared.contribute(parts.slot, packet, self._all, expired=expired)
            yield Step(parts._replace(slot=slot, up=parts.up | ({left} if left else set())))

    def within(self, parts: SharedParts) -> Iterator[Step]:
        """See Way."""
        for partial in parts.up:
            held, version, leaves = _add(parts.server, partial, self._all, root=True)
            left = leaves in (Leaves.RESULT, Leaves.RESULT_AGAIN)
            sent = (Sent(partial.chunk, self._ranks, version.sum.checksum),) if left else ()
            yield Step(parts._replace(server=held), sent)
        if parts.slot.members:  # another job takes it, or its result comes
            yield Step(parts._replace(slot=parts.slot.emptied, up=parts.up | {Packet(*parts.slot)}))
            yield Step(parts._replace(slot=parts.slot.emptied))

    def restarts(self, parts: SharedParts) -> Iterator[SharedParts]:
        """See Way."""
        yield parts._replace(slot=Slot())
        yield parts._replace(server=NEW)

    def without_packets(self, parts: SharedParts) -> SharedParts:
        """See Way."""
        return parts._replace(up=frozenset())
