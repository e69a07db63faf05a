# SPDX-License-Identifier: Apache-2.0
"""The slots of a switch that jobs share (docs/protocol.md, 5.7): a cache in front of the jobs' servers.

A contribution is the same whenever it is sent, so job, epoch, chunk and bits say what a sum is. A switch may lose a
slot at any time and send on any sum at any time: the server adds only what has no bit in common with what it has.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from inagg_simulator.slot_rules.packets import Packet, Query, Sum
from inagg_simulator.slot_rules.table import Table, case, rule
from inagg_simulator.slot_rules.versions import FromAbove


class Slot(NamedTuple):
    """A shared slot. Without members it is empty, and still says which chunk it was for."""

    job: int = 0
    epoch: int = 0
    chunk: int = 0
    members: int = 0
    sum: Sum = Sum()

    @property
    def emptied(self) -> "Slot":
        """The slot when its sum has gone on."""
        return Slot(self.job, self.epoch, self.chunk)

    def is_for(self, packet: Packet | Query) -> bool:
        """Whether the packet's chunk is the slot's."""
        return self[:3] == packet[:3]


# ---- facts


class Has(Enum):
    """What a slot has, seen from a packet."""

    OWN = auto()  # the packet's chunk
    SENT = auto()  # nothing; the packet's chunk has gone on
    EMPTY = auto()
    EXPIRED = auto()  # another chunk, for longer than the expiry age
    LOWER = auto()  # another chunk, of a job of lower priority
    OTHER = auto()


def has(slot: Slot, packet: Packet, *, expired: bool, lower: bool) -> Has:
    """What a slot has. expired, lower: what another chunk in it would be."""
    if slot.is_for(packet):
        return Has.OWN if slot.members else Has.SENT
    if not slot.members:
        return Has.EMPTY
    return Has.EXPIRED if expired else Has.LOWER if lower else Has.OTHER


class Brings(Enum):
    """Whose contributions a packet has, besides those in the slot of its chunk."""

    WHOLE = auto()  # those of all ranks below this switch; or it has no words
    OVERLAP = auto()  # some that are in the slot
    SOME = auto()  # others, and some rank is missing still
    LAST = auto()  # others, and with them all are there


def brings(slot: Slot, packet: Packet, everybody: int, *, data: bool = True) -> Brings:
    """Whose contributions a packet has. everybody: the bits of the job's ranks below this switch."""
    if not data or packet.members == everybody:
        return Brings.WHOLE
    if slot.members & packet.members:
        return Brings.OVERLAP
    return Brings.LAST if slot.members | packet.members == everybody else Brings.SOME


class Of(Enum):
    """What a slot has, seen from a packet that comes down."""

    THIS_CHUNK = auto()
    ANYTHING_ELSE = auto()


class Waiting(Enum):
    """Whose contributions the slot of a query's chunk has."""

    ASKER = auto()
    FOR = auto()  # not the asker's, but that of a rank for which a slot below waits
    NOBODY = auto()  # or it is not of this chunk


def waiting(slot: Slot, query: Query) -> Waiting:
    """Whose contributions the slot of a query's chunk has."""
    members = slot.members if slot.is_for(query) else 0
    if members & query.asker:
        return Waiting.ASKER
    return Waiting.FOR if members & query.waits_with else Waiting.NOBODY


# ---- actions


class Action(NamedTuple):
    """What is done with a contribution. effect: the slot's new state, and what goes on up."""

    text: str
    effect: Callable[[Slot, Packet], tuple[Slot, Packet | None]]


def _added(slot: Slot, packet: Packet) -> Slot:
    return slot._replace(members=slot.members | packet.members, sum=slot.sum.added(packet.sum))


ON = Action("goes on as it is", lambda slot, packet: (slot, packet))
ON_AFTER_ITS_SUM = Action("goes on as it is, because the chunk's sum has gone on", ON.effect)
TAKE = Action("takes the slot", lambda slot, packet: (Slot(*packet), None))
ADD = Action("is added; the sum stays", lambda slot, packet: (_added(slot, packet), None))
COMBINE = Action(
    "is added; the sum goes on as one packet; the slot becomes empty",
    lambda slot, packet: (slot.emptied, Packet(*_added(slot, packet))),
)
FLUSH = Action(
    "the slot's sum goes on in the contribution's place; the slot becomes empty",
    lambda slot, packet: (slot.emptied, Packet(*slot)),
)
SWAP = Action(
    "takes the slot; the slot's old sum goes on in the contribution's place, for the old sum's job",
    lambda slot, packet: (Slot(*packet), Packet(*slot)),
)


class Mark(NamedTuple):
    """What a query says when it goes on. effect: its waits_with."""

    text: str
    effect: Callable[[Query, int], int]


MARK = Mark("all ranks below this switch", lambda query, everybody: everybody)
CLEAR = Mark("0: the sum that waits further below will not be completed there", lambda query, everybody: 0)
LEAVE = Mark("as it was", lambda query, everybody: query.waits_with)


class FromAboveAction(NamedTuple):
    """What is done with a packet from a server or a switch above."""

    text: str
    leaves: bool  # to all members
    empties: bool = False


# ---- tables

_ANY, _REST = (
    case("any", Has),
    case("any other contribution", [fact for fact in Brings if fact is not Brings.WHOLE]),
)
_OWN = case("has this chunk", [Has.OWN])

CONTRIBUTIONS = Table(
    ("the slot", "a contribution", "action"),
    (Has, Brings),
    [
        rule(
            _ANY,
            case("without words, or of all ranks below this switch", [Brings.WHOLE]),
            does=ON,
            counts="passed",
        ),
        rule(
            case("is empty, and was this chunk's", [Has.SENT]), _REST, does=ON_AFTER_ITS_SUM, counts="passed"
        ),
        rule(case("is empty, otherwise", [Has.EMPTY]), _REST, does=TAKE, counts="slot_taken"),
        rule(
            _OWN,
            case("of ranks that are not in the slot; some rank below is still missing", [Brings.SOME]),
            does=ADD,
            counts="slot_added",
        ),
        rule(
            _OWN,
            case("of ranks that are not in the slot; no rank below is missing then", [Brings.LAST]),
            does=COMBINE,
            counts="slot_combined",
        ),
        rule(
            _OWN,
            case("of ranks of which some are in the slot", [Brings.OVERLAP]),
            does=FLUSH,
            counts="slot_flushed",
        ),
        rule(
            case("has another chunk, taken more than the expiry age ago", [Has.EXPIRED]),
            _REST,
            does=SWAP,
            counts="slot_expired",
        ),
        rule(
            case("has another chunk, of a job of lower priority", [Has.LOWER]),
            _REST,
            does=SWAP,
            counts="slot_evicted",
        ),
        rule(case("has another chunk, otherwise", [Has.OTHER]), _REST, does=ON, counts="slot_collided"),
    ],
)
QUERIES = Table(
    ("the slot has", "`waits_with` of a query becomes"),
    (Waiting,),
    [
        rule(
            case("this chunk, with the asker's contribution", [Waiting.ASKER]),
            does=MARK,
            counts="query_forwarded",
        ),
        rule(
            case("this chunk, with the contribution of a rank in `waits_with`", [Waiting.FOR]),
            does=CLEAR,
            counts="query_forwarded",
        ),
        rule(case("anything else", [Waiting.NOBODY]), does=LEAVE, counts="query_forwarded"),
    ],
)
FROM_ABOVE = Table(
    ("the slot", "from a server or a switch above", "action"),
    (Of, FromAbove),
    [
        rule(
            case("has this chunk", [Of.THIS_CHUNK]),
            case("a result", [FromAbove.RESULT]),
            does=FromAboveAction(
                "goes to all members (5.3); the slot becomes empty", leaves=True, empties=True
            ),
            counts="slot_freed result_forwarded",
        ),
        rule(
            case("anything else", [Of.ANYTHING_ELSE]),
            case("a result", [FromAbove.RESULT]),
            does=FromAboveAction("goes to all members (5.3)", leaves=True),
            counts="result_forwarded",
        ),
        rule(
            case("any", Of),
            case("an answer", [FromAbove.ANSWER]),
            does=FromAboveAction("is dropped: answers go past the switch", leaves=False),
            counts="answer_unexpected",
        ),
    ],
)

# ---- what a packet does


def contribute(
    slot: Slot,
    packet: Packet,
    everybody: int,
    *,
    data: bool = True,
    expired: bool = False,
    lower: bool = False,
) -> tuple[Slot, Packet | None, str]:
    """A contribution comes. Returns the slot, what goes on up, and the counter.

    everybody: the bits of the job's ranks below this switch. data: the packet has words. expired, lower: what the slot
    has is too old, or of a job of lower priority.
    """
    facts = has(slot, packet, expired=expired, lower=lower), brings(slot, packet, everybody, data=data)
    _, action, (counter,) = CONTRIBUTIONS[facts]
    return (*action.effect(slot, packet), counter)


def ask(slot: Slot, query: Query, everybody: int) -> Query:
    """A query comes. Returns it as it goes on up."""
    mark = QUERIES[(waiting(slot, query),)].action
    return query._replace(waits_with=mark.effect(query, everybody))


def from_above(slot: Slot, packet: Packet | Query, kind: FromAbove) -> tuple[Slot, bool, tuple[str, ...]]:
    """A packet comes from a server or a switch above. Returns the slot, whether members get it, and the counters."""
    fact = Of.THIS_CHUNK if slot.is_for(packet) and slot.members else Of.ANYTHING_ELSE
    _, action, counters = FROM_ABOVE[fact, kind]
    return slot.emptied if action.empties else slot, action.leaves, counters
