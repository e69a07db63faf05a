# SPDX-License-Identifier: Apache-2.0
"""What became of one chunk: its packets, each with the places that saw it, and what follows from them.

The rules are those of docs/protocol.md, 5.2 and 6.1: an aggregator answers each query, a rank sends a contribution
again only after the answer "again", and that answer means that the aggregator lacks the contribution, or has the
result. So a packet that no capture misses can still be known to be lost. The rules are for leased slots and servers. On
shared slots (5.7) a contribution may wait in a slot while the server asks for it again, so only what is sent again is
told there, not what was lost.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from inagg_wire.captures import Place
from inagg_wire.frames import Address
from inagg_wire.network import Direction, Network
from inagg_wire.packets import Packet

# One packet passes all places within this time. The same packet later has been sent again.
_PASSES_NS = 2_000_000_000
_MOST_SENDINGS = 20_000  # of one chunk: a flood of one packet must not fill the memory


class Sighting(NamedTuple):
    """A packet at one place. Time in ns."""

    time_ns: int
    place: Place
    source: Address
    destination: Address
    packet: Packet
    congested: bool


class Sending:
    """A packet that left once, and where it was seen: one place after another."""

    __slots__ = ("congested", "destination", "packet", "seen", "source")

    def __init__(self, first: Sighting) -> None:
        self.packet, self.source, self.destination = first.packet, first.source, first.destination
        self.congested = first.congested
        self.seen = [(first.time_ns, first.place)]

    @property
    def time_ns(self) -> int:
        """When it was first seen."""
        return self.seen[0][0]

    @property
    def last_ns(self) -> int:
        """When it was last seen: closest to its receiver."""
        return self.seen[-1][0]

    def at(self, place: Place) -> bool:
        return any(each == place for _, each in self.seen)

    def is_same(self, other: Sighting) -> bool:
        """Whether it is the same to the byte: CE and the flag that stands for it may come on the way (6.2)."""
        return (
            self.packet == other.packet
            and self.source == other.source
            and self.destination == other.destination
        )


class Loss(NamedTuple):
    """A packet that did not arrive.

    what: contribution, result, query (or its answer), repeat (a contribution for the result, or that result), or late:
    all places before the member saw the result, so it came late, or was lost behind them.
    """

    what: str
    member: Address
    sending: Sending  # the lost packet; of a result the first one, of a query or repeat the question


class Turn(NamedTuple):
    """How an aggregator came to its sum."""

    done_ns: int
    last: Address | None  # whose contribution completed the sum; None if that cannot be known
    last_ns: int


@dataclass
class Outcome:
    """What follows from a chunk's packets."""

    turns: dict[Address, Turn] = field(default_factory=dict)  # by aggregator
    losses: list[Loss] = field(default_factory=list)
    again: list[Sending] = field(default_factory=list)  # contributions sent again because of an answer
    duplicates: list[Sending] = field(default_factory=list)  # contributions that came twice without that


class Chunk:
    """The packets of one chunk of a job, in the order of time."""

    __slots__ = ("overflow", "sendings")

    def __init__(self) -> None:
        self.sendings: list[Sending] = []
        self.overflow = 0  # packets that were too many

    def add(self, sighting: Sighting) -> bool:
        """Take a sighting. True if it is of a packet that was not seen before."""
        newest = next((each for each in reversed(self.sendings) if each.is_same(sighting)), None)
        if (
            newest is not None
            and not newest.at(sighting.place)
            and sighting.time_ns - newest.time_ns < _PASSES_NS
        ):
            newest.seen.append((sighting.time_ns, sighting.place))
            return False
        if len(self.sendings) >= _MOST_SENDINGS:
            self.overflow += 1
            return False
        self.sendings.append(Sending(sighting))
        return True

    @property
    def sound(self) -> list[Sending]:
        """Those with right check fields. An aggregator drops the others (5.1)."""
        return [each for each in self.sendings if each.packet.checks]

    def outcome(self, network: Network) -> Outcome:
        """What follows from the packets."""
        outcome = Outcome()
        asked = [each for each in self.sound if each.packet.is_contribution or each.packet.is_query]
        for aggregator in dict.fromkeys(each.destination for each in asked):
            _judge(self.sound, aggregator, network, outcome)
        outcome.losses.sort(key=lambda loss: loss.sending.time_ns)
        return outcome


def _judge(sendings: list[Sending], aggregator: Address, network: Network, outcome: Outcome) -> None:
    """What one aggregator did with the chunk."""
    sent: dict[Address, list[Sending]] = {}
    for each in sendings:
        if each.packet.is_contribution and each.destination == aggregator:
            sent.setdefault(each.source, []).append(each)
    result = next((s for s in sendings if s.packet.is_result and s.source == aggregator), None)
    upwards = next((s for s in sendings if s.packet.is_contribution and s.source == aggregator), None)
    done = min((each for each in (result, upwards) if each is not None), key=_time, default=None)
    if done is not None and sent:
        outcome.turns[aggregator] = _turn(done, sent)
    shared = any(s.packet.members is not None for s in sendings) or any(
        s.packet.is_answer and s.source != aggregator and s.destination in sent for s in sendings
    )
    for member, contributions in sent.items():
        again = [each for each in contributions[1:] if _has_asked(sendings, member, contributions, each)]
        outcome.again += again
        outcome.duplicates += [each for each in contributions[1:] if each not in again]
        if not shared and network.hears(aggregator, member):
            reached = partial(_reached, sendings, aggregator, member, network)
            outcome.losses += _lost(contributions[:1] + again, done, result, reached)
    askers = {s.source for s in sendings if s.packet.is_query and s.destination == aggregator}
    for member in askers:
        if not network.path(aggregator, member, Direction.DOWN):
            continue  # the captures show no answers
        outcome.losses += _unanswered(sendings, member, aggregator)


def _time(sending: Sending) -> int:
    return sending.time_ns


def _turn(done: Sending, sent: Mapping[Address, list[Sending]]) -> Turn:
    """Who was last, of the members whose contributions the captures show: two at least."""
    before = {
        member: [each.last_ns for each in contributions if each.last_ns <= done.time_ns]
        for member, contributions in sent.items()
    }
    arrived = {member: max(times) for member, times in before.items() if times}
    last = max(arrived, key=lambda member: arrived[member], default=None)
    if last is None or len(sent) < 2 or len(arrived) < len(sent):
        return Turn(done.time_ns, None, 0)
    return Turn(done.time_ns, last, arrived[last])


def _has_asked(
    sendings: list[Sending], member: Address, contributions: list[Sending], again: Sending
) -> bool:
    """Whether the member asked between a contribution and the one before: only then it sends again (6.1)."""
    before = contributions[contributions.index(again) - 1]
    return any(
        s.packet.is_query and s.source == member and before.time_ns <= s.time_ns <= again.time_ns
        for s in sendings
    )


def _reached(
    sendings: list[Sending],
    aggregator: Address,
    member: Address,
    network: Network,
    after_ns: int,
    before_ns: int,
) -> bool:
    """Whether a result passed all places before the member in this time.

    The member may have sent again nevertheless: results to a group come to another socket than answers.
    """
    places, addresses = network.locations(member.ip), network.heard_by(aggregator, member)
    return any(
        places <= {place.location for time_ns, place in each.seen if after_ns <= time_ns < before_ns}
        for each in sendings
        if each.packet.is_result and each.source == aggregator and each.destination.ip in addresses
    )


def _lost(
    contributions: list[Sending],
    done: Sending | None,
    result: Sending | None,
    reached: Callable[[int, int], bool],
) -> Iterator[Loss]:
    """Losses that show because contributions of one member were sent again."""
    for each, following in pairwise(contributions):
        if done is None or following.time_ns <= done.time_ns:
            yield Loss("contribution", each.source, each)
        elif result is not None and reached(each.time_ns, following.time_ns):
            yield Loss("late", each.source, result)
        elif result is not None and each.time_ns <= result.time_ns < following.time_ns:
            yield Loss("result", each.source, result)
        elif result is not None and each.time_ns > result.time_ns:
            yield Loss("repeat", each.source, each)


def _unanswered(sendings: list[Sending], member: Address, aggregator: Address) -> Iterator[Loss]:
    """Queries without an answer, which would have the query's number."""
    answers = {
        s.packet.checksum
        for s in sendings
        if s.packet.is_answer and s.destination.ip == member.ip and s.source == aggregator
    }
    for each in sendings:
        packet = each.packet
        if (
            packet.is_query
            and (each.source, each.destination) == (member, aggregator)
            and packet.checksum not in answers
        ):
            yield Loss("query", member, each)
