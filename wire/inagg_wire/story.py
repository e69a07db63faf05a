# SPDX-License-Identifier: Apache-2.0
"""The story of one chunk: its packets in the order of time, and what follows from them, in words or as a document."""

from collections.abc import Iterator
from typing import Any

from inagg_contract.addresses import format_ip
from inagg_contract.constants import KIND_DATA
from inagg_wire.captures import Place
from inagg_wire.chunks import Chunk, Loss, Outcome, Sending
from inagg_wire.decoder import Decoder, Job
from inagg_wire.frames import Address
from inagg_wire.network import Network, direction, is_group
from inagg_wire.packets import Packet

_KIND = {True: "DATA", False: "EXPONENT"}


def stories(decoder: Decoder, slots: int | None) -> list[dict[str, Any]]:
    """The documents of the chunk in each job and epoch that had it. slots: the job's S."""
    return [
        _Teller(decoder.network, job, number, chunk, slots).document()
        for (job, number), chunk in decoder.chunks.items()
    ]


def told(story: dict[str, Any]) -> Iterator[str]:
    """The lines of a story."""
    slot = story["slot"]
    where = (
        f"slot {slot['slot']}, version {slot['version']} of S = {slot['slots']}"
        if slot
        else "slot chunk mod S, version (chunk div S) mod 2: --slots S says which"
    )
    yield f"chunk {story['chunk']} of job {story['job']}, epoch {story['epoch']:#010x}: {story['kind']}; {where}"
    yield f"times in ms since {story['began_s']:.6f} s"
    for event in story["events"]:
        places = ", ".join(event["seen_at"]) or "the capture"
        yield f"{event['ms']:10.3f}  {event['text']}  [{places}]"
    if story["left_out"]:
        yield f"{story['left_out']} more packets of this chunk were too many to keep"
    for turn in story["turns"]:
        if turn["last"] is None:
            yield f"summed:  by {turn['aggregator']} at {turn['ms']:.3f}"
        else:
            yield (
                f"last:    {turn['last']} at {turn['last_ms']:.3f}, of {turn['of']} seen;"
                f" {turn['aggregator']} had the sum at {turn['ms']:.3f}"
            )
    for each in story["received"]:
        yield f"result:  {each['member']} " + (
            "was not seen to get it" if each["ms"] is None else f"had it at {each['ms']:.3f}"
        )
    for late in story["late"]:
        yield f"late:    {late['text']}"
    for loss in story["lost"]:
        yield f"lost:    {loss['text']}"
    if not story["lost"]:
        yield "lost:    nothing that these captures show"


class _Teller:
    """Puts one chunk into words."""

    def __init__(self, network: Network, job: Job, number: int, chunk: Chunk, slots: int | None) -> None:
        self._network, self._job, self._number, self._chunk, self._slots = network, job, number, chunk, slots
        self._began = chunk.sendings[0].time_ns
        self._outcome: Outcome = chunk.outcome(network)

    def document(self) -> dict[str, Any]:
        kinds = {_KIND[bool(each.packet.kind & KIND_DATA)] for each in self._chunk.sound}
        return {
            "job": self._job.number,
            "epoch": self._job.epoch,
            "chunk": self._number,
            "kind": " and ".join(sorted(kinds)) or "only damaged packets",
            "slot": self._slot(),
            "began_s": self._began / 1e9,
            "events": [self._event(each) for each in self._chunk.sendings],
            "left_out": self._chunk.overflow,
            "turns": list(self._turns()),
            "received": list(self._received()),
            "late": [self._loss(loss) for loss in self._outcome.losses if loss.what == "late"],
            "lost": [self._loss(loss) for loss in self._outcome.losses if loss.what != "late"],
        }

    def _slot(self) -> dict[str, int] | None:
        """By 5.2: chunk c uses slot c mod S, version (c div S) mod 2."""
        if self._slots is None:
            return None
        return {
            "slots": self._slots,
            "slot": self._number % self._slots,
            "version": self._number // self._slots % 2,
            "index": self._number % (2 * self._slots),
        }

    def _ms(self, time_ns: int) -> float:
        return round((time_ns - self._began) / 1e6, 6)

    def _name(self, address: Address) -> str:
        return self._network.name(*self._job, address)

    def _event(self, sending: Sending) -> dict[str, Any]:
        packet = sending.packet
        missed = self._missed(sending)
        text = f"{self._name(sending.source)} {self._deed(sending)}"
        if not packet.checks:
            text += "; check fields do not match, so it is dropped"
        if sending.congested:
            text += "; marked congested (CE)"
        if missed:
            text += f"; never came to {', '.join(map(str, missed))}"
        return {
            "ms": self._ms(sending.time_ns),
            "text": text,
            "kind": packet.kind,
            "rank": packet.rank,
            "flags": packet.flags,
            "exponent": packet.exponent,
            "checksum": packet.checksum,
            "length": packet.length,
            "members": packet.members,
            "waits_with": packet.waits_with,
            "source": _written(sending.source),
            "destination": _written(sending.destination),
            "congested": sending.congested,
            "again": any(each is sending for each in self._outcome.again),
            "seen_at": [str(place) for _, place in sending.seen],
            "seen_ms": [self._ms(time) for time, _ in sending.seen],
            "never_at": [str(place) for place in missed],
        }

    def _deed(self, sending: Sending) -> str:
        packet, to = sending.packet, self._name(sending.destination)
        number = f"number {packet.checksum:#010x}"
        if packet.is_query:
            return f"asks {to}, {number}{_waits(packet)}"
        if packet.is_answer:
            reply = "send again" if packet.asks_again else "held, wait"
            return f"answers {to}: {reply}, {number}"
        if packet.is_result:
            resent = any(
                each.packet.is_result and each.source == sending.source
                for each in self._chunk.sound[: self._place(sending)]
            )
            again = " again" if resent and not is_group(sending.destination.ip) else ""
            return f"sends the result{again} to {to}{_stated(packet)}"
        what = "contribution"
        if sending.source in self._network.aggregators(*self._job):
            what = "partial sum"
        if packet.members is not None:
            ranks = [str(rank) for rank in range(64) if packet.members >> rank & 1]
            what = (
                f"sum of ranks {', '.join(ranks)}" if len(ranks) > 1 else f"contribution of rank {ranks[0]}"
            )
        if any(each is sending for each in self._outcome.again):
            return f"sends its {what} again to {to}{_stated(packet)}"
        if any(each is sending for each in self._outcome.duplicates):
            return f"sends its {what} to {to} a second time, without having asked{_stated(packet)}"
        return f"sends its {what} to {to}{_stated(packet)}"

    def _place(self, sending: Sending) -> int:
        return next(at for at, each in enumerate(self._chunk.sound) if each is sending)

    def _missed(self, sending: Sending) -> list[Place]:
        """The places that packets of this way pass, and that have not seen this one."""
        path = self._network.path(sending.source, sending.destination, direction(sending.packet))
        return sorted(place for place in path if not sending.at(place))

    def _turns(self) -> Iterator[dict[str, Any]]:
        for aggregator, turn in self._outcome.turns.items():
            seen = {
                each.source
                for each in self._chunk.sound
                if each.packet.is_contribution and each.destination == aggregator
            }
            yield {
                "aggregator": self._name(aggregator),
                "ms": self._ms(turn.done_ns),
                "last": None if turn.last is None else self._name(turn.last),
                "last_ms": None if turn.last is None else self._ms(turn.last_ns),
                "of": len(seen),
            }

    def _received(self) -> Iterator[dict[str, Any]]:
        """When each member had the result: the first one after the last that was lost."""
        members = dict.fromkeys(
            each.source
            for each in self._chunk.sound
            if not each.packet.is_result and not each.packet.is_answer
        )
        for member in members:
            after = max(
                (
                    each.time_ns
                    for each in self._outcome.again
                    if each.source == member and self._follows_result(each)
                ),
                default=0,
            )
            times = [
                time
                for each in self._chunk.sound
                if each.packet.is_result and each.time_ns >= after
                for time in [self._arrival(each, member)]
                if time is not None
            ]
            yield {"member": self._name(member), "ms": self._ms(min(times)) if times else None}

    def _follows_result(self, again: Sending) -> bool:
        return any(
            each.packet.is_result and each.source == again.destination and each.time_ns < again.time_ns
            for each in self._chunk.sound
        )

    def _arrival(self, result: Sending, member: Address) -> int | None:
        """When a result was seen closest to a member."""
        if result.destination == member:
            return result.last_ns
        if not is_group(result.destination.ip):
            return None
        locations = self._network.locations(member.ip)
        return max((time for time, place in result.seen if place.location in locations), default=None)

    def _loss(self, loss: Loss) -> dict[str, Any]:
        member, sending = self._name(loss.member), loss.sending
        at, to = f"of {self._ms(sending.time_ns):.3f}", self._name(sending.destination)
        if loss.what == "contribution":
            text = f"the contribution of {member} {at}: {to} lacked it{self._trail(sending)}"
        elif loss.what == "result":
            text = (
                f"the result {at} on its way to {member}, which sent again{self._trail(sending, loss.member)}"
            )
        elif loss.what == "late":
            text = (
                f"the result {at} came to {member} late, which sent again, or was lost behind these captures"
            )
        elif loss.what == "query":
            text = f"the query of {member} {at}, or its answer: none was seen{self._trail(sending)}"
        else:
            text = (
                f"the contribution of {member} {at}, or the result that answers it: {member} sent once more"
                f"{self._trail(sending)}"
            )
        return {
            "what": loss.what,
            "member": _written(loss.member),
            "ms": self._ms(sending.time_ns),
            "text": text,
        }

    def _trail(self, sending: Sending, member: Address | None = None) -> str:
        """Where a lost packet was last seen, and where not. Of a result only the places of the member count."""
        missed, seen = self._missed(sending), [place for _, place in sending.seen]
        if member is not None and is_group(sending.destination.ip):
            locations = self._network.locations(member.ip)
            missed = [place for place in missed if place.location in locations]
            seen = [place for place in seen if place.location in locations]
        parts = []
        if seen:
            parts.append(f"last seen at {seen[-1]}")
        if missed:
            parts.append(f"never at {', '.join(map(str, missed))}")
        return f" ({', '.join(parts)})" if parts else ""


def _stated(packet: Packet) -> str:
    flags = f", flags {packet.flags:#04x}" if packet.flags else ""
    return f" (exponent {packet.exponent}{flags}, {packet.length} bytes)"


def _waits(packet: Packet) -> str:
    return "" if packet.waits_with is None else f", waits with {packet.waits_with:#x}"


def _written(address: Address) -> str:
    return f"{format_ip(address.ip)}:{address.port}"
