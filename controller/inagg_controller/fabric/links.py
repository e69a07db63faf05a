# SPDX-License-Identifier: Apache-2.0
"""Finds out by beacons which links are there (docs/protocol.md, 7.3). It decides and does no I/O.

A link is up while beacons arrive at both of its ends. One that arrives at another port than the topology says is proof
of a wrong cable.
"""

import hmac
import secrets
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from inagg_contract.constants import ETHERTYPE_BEACON
from inagg_controller.fabric.topology import Link, Place, Topology

_DESTINATION = bytes.fromhex("0180c200000e")  # the nearest bridge: no other kind of switch forwards it
_HEADERS = struct.Struct("!6s6sHHH")  # Ethernet, then beacon_t of the P4 program
_SECRET_BYTES = 16
_BODY = struct.Struct(f"!{_SECRET_BYTES}sH")  # the controller's secret, index of the sending switch
_SHORTEST_FRAME = 60

State = Literal["unknown", "up", "down"]


@dataclass(frozen=True, slots=True)
class Change:
    """A link is up or down now. reason: why it is down."""

    link: Link
    state: State
    reason: str = ""


class Links:
    """The states of a topology's links.

    interval_s: between two beacons in one direction. timeout_s: how long none has to arrive for a link to be down. More
    than interval_s between two calls counts as interval_s: this process did not run, so it heard nothing. So a link is
    up or down after timeout_s / interval_s ticks at most, however long they take.
    """

    def __init__(self, topology: Topology, now: float, *, interval_s: float, timeout_s: float) -> None:
        self.topology = topology
        self.states: dict[Link, State] = dict.fromkeys(topology.links, "unknown")
        self.reasons: dict[Link, str] = {}
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._names = [switch.name for switch in topology.switches]
        self._heard: dict[Place, float] = {}  # in the time of `_ran`
        self._wrong: dict[Place, Place] = {}
        self._next = self._last_call = now
        self._ran = 0.0  # seconds that this process has run

    def due(self, now: float) -> Mapping[str, list[bytes]]:
        """The beacons to send now: switch -> frames for its CPU port."""
        if not self.states or now < self._next:
            return {}
        self._next = now + self._interval_s
        frames: dict[str, list[bytes]] = {}
        for place in self.topology.link_at:
            frames.setdefault(place.switch, []).append(self.beacon(place))
        return frames

    def beacon(self, place: Place) -> bytes:
        """The frame that a switch sends out of a port."""
        source = self.topology.by_name[place.switch].mac.to_bytes(6, "big")
        frame = _HEADERS.pack(_DESTINATION, source, ETHERTYPE_BEACON, place.port, 0)
        frame += _BODY.pack(self._secret, self._names.index(place.switch))
        return frame.ljust(_SHORTEST_FRAME, b"\0")

    def hear(self, switch: str, frame: bytes, now: float) -> None:
        """Record a frame that a switch has passed to the controller. Only beacons of this controller matter."""
        if len(frame) < _HEADERS.size + _BODY.size:
            return
        _, _, ether_type, out_port, in_port = _HEADERS.unpack_from(frame)
        secret, index = _BODY.unpack_from(frame, _HEADERS.size)
        if (
            ether_type != ETHERTYPE_BEACON
            or not hmac.compare_digest(secret, self._secret)
            or index >= len(self._names)
        ):
            return
        sent, came = Place(self._names[index], out_port), Place(switch, in_port)
        link = self.topology.link_at.get(sent)
        if link is None:
            return
        if came in link.ends and came != sent:
            self._heard[came] = self._let_pass(now)
            self._wrong.pop(sent, None)
        else:
            self._wrong[sent] = came

    def wrong_cables(self) -> list[str]:
        """What differs from the topology, each with both ends."""
        return [self.reasons[link] for link in self.states if any(end in self._wrong for end in link.ends)]

    def tick(self, now: float) -> Iterator[Change]:
        """Let time pass. Yields the links whose state changes."""
        ran = self._let_pass(now)
        for link, state in self.states.items():
            wrong = [(end, self._wrong[end]) for end in link.ends if end in self._wrong]
            silent = [end for end in link.ends if ran - self._heard.get(end, 0.0) >= self._timeout_s]
            if wrong:
                sent, came = wrong[0]
                other = next(end for end in link.ends if end != sent)
                reason = f"port {sent} is connected to {came}; the topology file says {other}"
                yield from self._change(link, "down", reason)
            elif silent:
                yield from self._change(link, "down", f"no beacon arrives at {' or '.join(map(str, silent))}")
            elif state != "up" and all(end in self._heard for end in link.ends):
                yield from self._change(link, "up")

    def _let_pass(self, now: float) -> float:
        """Let time pass; return how long this process has run."""
        self._ran += min(now - self._last_call, self._interval_s)
        self._last_call = now
        return self._ran

    def _change(self, link: Link, state: State, reason: str = "") -> Iterator[Change]:
        if (self.states[link], self.reasons.get(link, "")) != (state, reason):
            self.states[link] = state
            self.reasons[link] = reason
            yield Change(link, state, reason)
