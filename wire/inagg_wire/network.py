# SPDX-License-Identifier: Apache-2.0
"""Who is where, learned from the packets of a capture: ranks, aggregators, and the places that their packets pass."""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from inagg_contract.addresses import format_ip
from inagg_contract.constants import INAGG_PORT
from inagg_wire.captures import Place
from inagg_wire.frames import Address
from inagg_wire.packets import Packet

_MOST = 20_000  # entries of each table: packets with random addresses must not fill the memory
_K = TypeVar("_K")
_V = TypeVar("_V")
_MULTICAST = range(0xE0000000, 0xF0000000)


class Direction(Enum):
    """Of a packet: to the aggregator, or from it."""

    UP = "up"
    DOWN = "down"


def direction(packet: Packet) -> Direction:
    return Direction.DOWN if packet.is_result or packet.is_answer else Direction.UP


def is_group(ip: int) -> bool:
    """Whether an address is a job's group address (5.3)."""
    return ip in _MULTICAST


@dataclass
class Network:
    """What the packets of one capture show. `learn` is called with each packet at each place."""

    _paths: dict[tuple[int, int, Direction], set[Place]] = field(default_factory=dict)
    _locations: dict[int, set[tuple[str, str]]] = field(default_factory=dict)
    _ranks: dict[tuple[int, int], dict[Address, int]] = field(default_factory=dict)
    # Of an aggregator, the nodes that its packets leave, and those that they enter.
    _leaves: dict[int, set[str]] = field(default_factory=dict)
    _enters: dict[int, set[str]] = field(default_factory=dict)
    _aggregators: dict[tuple[int, int], set[Address]] = field(default_factory=dict)
    _groups: dict[int, set[int]] = field(default_factory=dict)  # to which an aggregator sends

    def learn(self, packet: Packet, source: Address, destination: Address, place: Place) -> None:
        way, job = direction(packet), (packet.job, packet.epoch)
        _add(self._paths, (source.ip, destination.ip, way), place)
        if way is Direction.UP:
            _add(self._locations, source.ip, place.location)
            _add(self._aggregators, job, destination)
            if job in self._ranks or len(self._ranks) < _MOST:
                ranks = self._ranks.setdefault(job, {})
                if source in ranks or len(ranks) < _MOST:
                    ranks[source] = packet.rank
        else:
            _add(self._aggregators, job, source)
            if is_group(destination.ip):
                _add(self._groups, source.ip, destination.ip)
            if place.way:
                _add(self._leaves if place.way == "out" else self._enters, source.ip, place.node)

    def path(self, source: Address, destination: Address, way: Direction) -> set[Place]:
        """The places that have seen packets of this direction between the two."""
        return self._paths.get((source.ip, destination.ip, way), set())

    def hears(self, aggregator: Address, member: Address) -> bool:
        """Whether the captures show results to a member, its own or those to a group."""
        return any(
            (aggregator.ip, ip, Direction.DOWN) in self._paths for ip in self.heard_by(aggregator, member)
        )

    def heard_by(self, aggregator: Address, member: Address) -> set[int]:
        """The addresses to which an aggregator sends what the member receives."""
        return {member.ip} | self._groups.get(aggregator.ip, set())

    def locations(self, ip: int) -> set[tuple[str, str]]:
        """Where a sender's own packets have been seen. Packets to the sender pass there, too."""
        return self._locations.get(ip, set())

    def members(self, job: int, epoch: int) -> dict[Address, int]:
        """The senders of contributions and queries in a job, with the number in their field `rank`."""
        return self._ranks.get((job, epoch), {})

    def aggregators(self, job: int, epoch: int) -> set[Address]:
        """The switches and servers that sum for a job."""
        return self._aggregators.get((job, epoch), set())

    def name(self, job: int, epoch: int, address: Address) -> str:
        """A rank, a switch or server, a group address, or another address."""
        ip = format_ip(address.ip)
        if is_group(address.ip):
            return f"the group ({ip})"
        if address in self.aggregators(job, epoch):
            if address.port != INAGG_PORT:
                return f"server {ip}:{address.port}"
            nodes = self._leaves.get(address.ip, set()) - self._enters.get(address.ip, set())
            node = next(iter(nodes)) if len(nodes) == 1 else ""
            return f"{node or 'switch'} ({ip})"
        rank = self.members(job, epoch).get(address)
        if rank is None:
            return f"{ip}:{address.port}"
        member = len({each for each in self.aggregators(job, epoch) if each.port == INAGG_PORT}) > 1
        return f"{'member' if member else 'rank'} {rank} ({ip})"


def _add(table: dict[_K, set[_V]], key: _K, value: _V) -> None:
    if key in table or len(table) < _MOST:
        values = table.setdefault(key, set())
        if len(values) < _MOST:
            values.add(value)
