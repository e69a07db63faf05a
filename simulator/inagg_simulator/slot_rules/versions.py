# SPDX-License-Identifier: Apache-2.0
"""The two versions of a slot (docs/protocol.md, 5.2): in a switch where the job leases slots, or in a server.

A server does what a root does. Behind shared slots (5.7) its packets may have the bits of several workers.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from inagg_simulator.slot_rules.packets import Packet, Query, Sum, age
from inagg_simulator.slot_rules.table import Table, case, rule

FIRST_MEMBER = 1  # the bit of the member whose asking makes a switch ask above


class Version(NamedTuple):
    """The state of one slot version."""

    epoch: int = 0
    chunk: int = 0
    members: int = 0
    sum: Sum = Sum()
    final: bool = False  # the sum of the whole job


# ---- facts


class Holds(Enum):
    """What a version has, seen from a packet's chunk."""

    FREE = auto()  # another epoch or an older chunk, and the packet's may start
    OLD = auto()  # the same, and it may not start, or the packet starts nothing
    SUMMING = auto()  # the same chunk, some bits clear
    PARTIAL = auto()  # the same chunk, all bits set, waits for the result from above
    FINAL = auto()  # the same chunk, the job's sum
    NEWER = auto()


def holds(held: Version, packet: Packet | Query, everybody: int) -> Holds:
    """What a version has, where the packet may not start. everybody: the bits of all members."""
    if held.epoch != packet.epoch or age(packet.chunk, held.chunk) > 0:
        return Holds.OLD
    if packet.chunk != held.chunk:
        return Holds.NEWER
    if held.final:
        return Holds.FINAL
    return Holds.PARTIAL if held.members == everybody else Holds.SUMMING


def may_start(held: Version, other: Version, packet: Packet, slots: int, first_chunk: int) -> bool:
    """Whether a chunk may take the place of what the version has. other: the slot's other version. slots: S.
    first_chunk: f."""
    begins = held.epoch != packet.epoch and (packet.chunk - first_chunk) % 2**32 < slots
    before = (packet.epoch, (packet.chunk - slots) % 2**32, True)
    return begins or (other.epoch, other.chunk, other.final) == before


class Bits(Enum):
    """The bits of a contribution in the version of its chunk."""

    CLEAR = auto()
    SOME_SET = auto()
    SET = auto()
    SET_OF_FIRST = auto()  # all set, and it is member 0's


def bits(held: Version, packet: Packet) -> Bits:
    """The bits of a contribution in the version of its chunk."""
    if not held.members & packet.members:
        return Bits.CLEAR
    if packet.members & ~held.members:
        return Bits.SOME_SET
    return Bits.SET_OF_FIRST if packet.members == FIRST_MEMBER else Bits.SET


class Asked(Enum):
    """Where the contribution of a query's sender is."""

    HERE = auto()
    HERE_OF_FIRST = auto()  # here, and the asker is member 0
    WAITS = auto()  # in a shared slot that can still be completed, because nobody's has come past it
    MISSING = auto()


def asked(held: Version, query: Query) -> Asked:
    """Where the contribution of a query's sender is."""
    members = held.members if (held.epoch, held.chunk) == (query.epoch, query.chunk) else 0
    if members & query.asker:
        return Asked.HERE_OF_FIRST if query.asker == FIRST_MEMBER else Asked.HERE
    return Asked.WAITS if query.waits_with and not members & query.waits_with else Asked.MISSING


class Completes(Enum):
    """Where a start or an add has left all bits set."""

    ROOT = auto()  # or a server
    BELOW = auto()  # a switch below another


class FromAbove(Enum):
    """What a switch above has sent."""

    RESULT = auto()
    ANSWER = auto()


# ---- actions


class Leaves(Enum):
    """What leaves."""

    NOTHING = auto()
    RESULT = auto()  # to all members
    RESULT_AGAIN = auto()  # to those in the packet
    PARTIAL = auto()  # the sum, to the switch above
    SAY_AGAIN = auto()  # the answer to the asker
    SAY_HELD = auto()
    QUERY = auto()  # to the switch above
    ANSWER = auto()  # to member 0


def _unchanged(held: Version, packet: Packet) -> Version:
    return held


class Action(NamedTuple):
    """What is done with a version. effect: on its state."""

    text: str
    leaves: Leaves = Leaves.NOTHING
    effect: Callable[[Version, Packet], Version] = _unchanged


def _start(held: Version, packet: Packet) -> Version:
    return Version(packet.epoch, packet.chunk, packet.members, packet.sum)


def _add(held: Version, packet: Packet) -> Version:
    return held._replace(members=held.members | packet.members, sum=held.sum.added(packet.sum))


def _keep(held: Version, packet: Packet) -> Version:
    return held._replace(sum=packet.sum._replace(words=packet.sum.words or held.sum.words), final=True)


def _finish(held: Version, packet: Packet) -> Version:
    return held._replace(final=True)


DROP = Action("drop")
AGAIN = Action('answer "again"', Leaves.SAY_AGAIN)
HELD = Action('answer "held"', Leaves.SAY_HELD)
START = Action(
    "**start**: overwrite the version with the packet (words 0 if the packet has none); not final",
    effect=_start,
)
ADD = Action(
    "**add**: words and checksum add, exponent and exponent_check maximum, flags and flags_check OR, set the bits",
    effect=_add,
)
RESEND = Action(
    "send the result again, only to the packet's sender (5.7: to each rank in the packet's bits)",
    Leaves.RESULT_AGAIN,
)
SEND_UP_AGAIN = Action("send the partial sum up again", Leaves.PARTIAL)
OVERLAP = Action("drop: the missing ranks ask, and then send again")
FINISH = Action("the version is final; multicast the result (5.3)", Leaves.RESULT, _finish)
SEND_UP = Action("send the partial sum up (5.5)", Leaves.PARTIAL)
PASS_UP = Action("send the query up (5.5)", Leaves.QUERY)
KEEP = Action(
    "**keep** the result: overwrite flags, exponent, check fields, checksum, and words if the result has words; final; "
    "multicast the result to the members (5.3)",
    Leaves.RESULT,
    _keep,
)
PASS_DOWN = Action("send the answer to member 0", Leaves.ANSWER)

# ---- tables

_FREE = case("another epoch, or an older chunk; and c may start", [Holds.FREE])
_MAY_NOT = case("another epoch, or an older chunk; and c may not start", [Holds.OLD])
_OLD = case("another epoch, or an older chunk", [Holds.OLD])
_NOT_FINAL = case("the same chunk, not final", [Holds.SUMMING, Holds.PARTIAL])
_PARTIAL = case("the same chunk, all bits set, not final", [Holds.PARTIAL])
_SUMMING = case("the same chunk, some bits clear", [Holds.SUMMING])
_FINAL = case("the same chunk, final", [Holds.FINAL])
_NEWER = case("a newer chunk", [Holds.NEWER])
_OF_A_QUERY = [fact for fact in Holds if fact is not Holds.FREE]

CONTRIBUTIONS = Table(
    ("slot version holds", "the packet's bits", "action"),
    (Holds, Bits),
    [
        rule(_FREE, case("any", Bits), does=START, counts="started"),
        rule(_MAY_NOT, case("any", Bits), does=DROP, counts="ahead"),
        rule(_NOT_FINAL, case("clear", [Bits.CLEAR]), does=ADD, counts="added"),
        rule(_FINAL, case("any", Bits), does=RESEND, counts="result_resent"),
        rule(
            _PARTIAL,
            case("set, and it is member 0's", [Bits.SET_OF_FIRST]),
            does=SEND_UP_AGAIN,
            counts="partial_resent",
        ),
        rule(_PARTIAL, case("set, otherwise", [Bits.SET]), does=DROP, counts="duplicate_pending"),
        rule(_SUMMING, case("set", [Bits.SET, Bits.SET_OF_FIRST]), does=DROP, counts="duplicate_pending"),
        rule(
            _NOT_FINAL,
            case("some set, some clear (5.7)", [Bits.SOME_SET]),
            does=OVERLAP,
            counts="overlapping",
        ),
        rule(_NEWER, case("any", Bits), does=DROP, counts="stale"),
    ],
)
COMPLETIONS = Table(
    ("where", "action"),
    (Completes,),
    [
        rule(case("at a root, or a server", [Completes.ROOT]), does=FINISH, counts="completed"),
        rule(case("at any other switch", [Completes.BELOW]), does=SEND_UP, counts="partial_sent"),
    ],
)
_HERE = [Asked.HERE, Asked.HERE_OF_FIRST]
_WAITS = case("waits in a shared slot (5.7)", [Asked.WAITS])
QUERIES = Table(
    ("slot version holds", "the asker's contribution", "action"),
    (_OF_A_QUERY, Asked),
    [
        rule(_OLD, _WAITS, does=HELD, counts="query_held"),
        rule(_OLD, case("otherwise", [*_HERE, Asked.MISSING]), does=AGAIN, counts="query_again"),
        rule(_NOT_FINAL, case("is missing", [Asked.MISSING]), does=AGAIN, counts="query_again"),
        rule(_NOT_FINAL, _WAITS, does=HELD, counts="query_held"),
        rule(_SUMMING, case("is here", _HERE), does=HELD, counts="query_held"),
        rule(
            _PARTIAL,
            case("is here, and the asker is member 0", [Asked.HERE_OF_FIRST]),
            does=PASS_UP,
            counts="query_passed",
        ),
        rule(_PARTIAL, case("is here, otherwise", [Asked.HERE]), does=HELD, counts="query_held"),
        rule(_FINAL, case("any", Asked), does=AGAIN, counts="query_again"),
        rule(_NEWER, case("any", Asked), does=DROP, counts="stale"),
    ],
)
_RESULT, _ANSWER, _EITHER = (
    case("result", [FromAbove.RESULT]),
    case("answer", [FromAbove.ANSWER]),
    case("any", FromAbove),
)
FROM_ABOVE = Table(
    ("slot version holds", "packet", "action"),
    (_OF_A_QUERY, FromAbove),
    [
        rule(_PARTIAL, _RESULT, does=KEEP, counts="result_kept"),
        rule(_PARTIAL, _ANSWER, does=PASS_DOWN, counts="answer_passed"),
        rule(_FINAL, _EITHER, does=DROP, counts="result_duplicate"),
        rule(_NEWER, _EITHER, does=DROP, counts="stale"),
        rule(
            case("anything else", [Holds.OLD, Holds.SUMMING]), _EITHER, does=DROP, counts="result_unexpected"
        ),
    ],
)

# ---- what a packet does


class Outcome(NamedTuple):
    """version: its new state. counters: in the order of the rules that were applied."""

    version: Version
    counters: tuple[str, ...]
    leaves: Leaves


def contribute(
    held: Version,
    other: Version,
    packet: Packet,
    slots: int,
    everybody: int,
    *,
    first_chunk: int = 0,
    root: bool = True,
) -> Outcome:
    """A contribution comes. other: the slot's other version. slots: S. first_chunk: f. root: no switch is above."""
    fact = holds(held, packet, everybody)
    if fact is Holds.OLD and may_start(held, other, packet, slots, first_chunk):
        fact = Holds.FREE
    _, action, counters = CONTRIBUTIONS[fact, bits(held, packet)]
    held = action.effect(held, packet)
    if action not in (START, ADD) or held.members != everybody:
        return Outcome(held, counters, action.leaves)
    _, action, completion = COMPLETIONS[(Completes.ROOT if root else Completes.BELOW,)]
    return Outcome(action.effect(held, packet), counters + completion, action.leaves)


def ask(held: Version, query: Query, everybody: int) -> Outcome:
    """A query comes."""
    _, action, counters = QUERIES[holds(held, query, everybody), asked(held, query)]
    return Outcome(held, counters, action.leaves)


def keep(held: Version, result: Packet, everybody: int) -> Outcome:
    """A result comes from a switch above."""
    _, action, counters = FROM_ABOVE[holds(held, result, everybody), FromAbove.RESULT]
    return Outcome(action.effect(held, result), counters, action.leaves)


def hear(held: Version, answer: Query, everybody: int) -> Outcome:
    """An answer comes from a switch above."""
    _, action, counters = FROM_ABOVE[holds(held, answer, everybody), FromAbove.ANSWER]
    return Outcome(held, counters, action.leaves)
