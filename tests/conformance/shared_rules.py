# SPDX-License-Identifier: Apache-2.0
"""The rules of shared slots, in plain Python: switches combine what workers send to a server, which is the authority.

A packet upwards has the bits of the workers whose contributions it sums; a worker's own has one. A contribution is the
same whenever it is sent, so job, epoch, chunk and bits say what a sum is. A switch may lose a slot at any time and send
on any sum at any time: the server adds only what has no bit in common with what it has.

Packets here are admitted (protocol 5.1): their epoch is their job's.
"""

from typing import NamedTuple

from inagg_simulator.reference_switch import Version, age


class Partial(NamedTuple):
    """A contribution or partial sum on its way up."""

    job: int
    epoch: int
    chunk: int
    members: int
    checksum: int = 0


class Query(NamedTuple):
    job: int
    epoch: int
    chunk: int
    asker: int  # a bit
    # The workers below the switch that has the asker's contribution in a slot, as far as switches know; 0: none has.
    waits_with: int = 0


class Slot(NamedTuple):
    """A slot of a switch's pool. Without members it is empty, and still says which chunk it was for."""

    job: int = 0
    epoch: int = 0
    chunk: int = 0
    members: int = 0
    checksum: int = 0

    @property
    def emptied(self) -> "Slot":
        return Slot(self.job, self.epoch, self.chunk)

    def is_for(self, packet: Partial | Query) -> bool:
        return self[:3] == packet[:3]


def switch_step(
    slot: Slot, packet: Partial, everybody: int, *, evicts: bool = False
) -> tuple[Slot, Partial | None, str]:
    """What a switch does with a contribution or partial sum. Returns the slot, what goes on up, and the counter.

    everybody: the bits of the job's workers below this switch. evicts: the packet may take the slot of another chunk,
    because of their jobs or because of the slot's age. What was in the slot then leaves in the packet's place.
    """
    if packet.members == everybody:
        return slot, packet, "passed"
    if not slot.is_for(packet):
        if not slot.members:
            return Slot(*packet), None, "taken"
        return (Slot(*packet), Partial(*slot), "evicted") if evicts else (slot, packet, "collided")
    if not slot.members:
        return slot, packet, "passed"
    if slot.members & packet.members:
        return slot.emptied, Partial(*slot), "flushed"
    members, checksum = slot.members | packet.members, (slot.checksum + packet.checksum) % 2**32
    if members == everybody:
        return slot.emptied, packet._replace(members=members, checksum=checksum), "combined"
    return slot._replace(members=members, checksum=checksum), None, "added"


def switch_ask(slot: Slot, query: Query, everybody: int) -> Query:
    """The query as a switch sends it on up."""
    if slot.is_for(query) and slot.members & query.asker:
        return query._replace(waits_with=everybody)
    if slot.is_for(query) and slot.members & query.waits_with:
        return query._replace(waits_with=0)
    return query


def server_step(
    held: Version, other: Version, packet: Partial, slots: int, everybody: int
) -> tuple[Version, list[str]]:
    """What a server does with a contribution or partial sum. Returns the version's new state, and the counters.

    other: the slot's other version. everybody: the bits of all workers. A result leaves for all workers with
    "completed", for those in the packet with "result_resent".
    """
    if held.epoch != packet.epoch or age(packet.chunk, held.chunk) > 0:
        before = (packet.epoch, (packet.chunk - slots) % 2**32, True)
        first = held.epoch != packet.epoch and packet.chunk < slots
        if not first and (other.epoch, other.chunk, other.final) != before:
            return held, ["ahead"]
        held = Version(packet.epoch, packet.chunk, packet.members, checksum=packet.checksum)
        counter = "started"
    elif packet.chunk != held.chunk:
        return held, ["stale"]
    elif held.final:
        return held, ["result_resent"]
    elif held.members & packet.members:
        # The workers that are missing in the server then send again when they ask.
        return held, ["overlapping" if packet.members & ~held.members else "duplicate_pending"]
    else:
        members, checksum = held.members | packet.members, (held.checksum + packet.checksum) % 2**32
        held = held._replace(members=members, checksum=checksum)
        counter = "added"
    if held.members != everybody:
        return held, [counter]
    return held._replace(final=True), [counter, "completed"]


def server_ask(held: Version, query: Query) -> str:
    """What a server does with a query: the counter's name."""
    if held.epoch != query.epoch or age(query.chunk, held.chunk) > 0:
        return "query_held" if query.waits_with else "query_again"
    if query.chunk != held.chunk:
        return "stale"
    if held.final:
        return "query_again"
    # A slot that waits for workers of whom one has come another way will not send on by itself.
    waits = query.waits_with and not held.members & query.waits_with
    return "query_held" if held.members & query.asker or waits else "query_again"
