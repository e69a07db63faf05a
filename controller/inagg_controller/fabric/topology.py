# SPDX-License-Identifier: Apache-2.0
"""Switches, the links between their ports, and hosts. Addresses are integers."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import networkx as nx


class Place(NamedTuple):
    """A port of a switch."""

    switch: str
    port: int

    def __str__(self) -> str:
        """As in the topology file: leaf1:49."""
        return f"{self.switch}:{self.port}"


@dataclass(frozen=True, slots=True)
class Link:
    """A cable between two switches."""

    ends: tuple[Place, Place]

    def end_at(self, switch: str) -> Place:
        """Its end at a switch."""
        return next(end for end in self.ends if end.switch == switch)

    def __str__(self) -> str:
        """Both ends."""
        return f"{self.ends[0]} - {self.ends[1]}"


@dataclass(frozen=True, slots=True)
class SwitchNode:
    """A switch. address: of its P4Runtime server. ip, mac: of its aggregator. ports: all of them, in order."""

    name: str
    address: str
    device_id: int
    ip: int
    mac: int
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """A host. mac: None if it is not bound to its port."""

    name: str
    ip: int
    mac: int | None
    place: Place


@dataclass(frozen=True)
class Topology:
    """What the controller is told about the network. Names, places and addresses are unique; every place exists."""

    switches: tuple[SwitchNode, ...]
    links: tuple[Link, ...] = ()
    hosts: tuple[Host, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, SwitchNode]:
        """Switches by name."""
        return {switch.name: switch for switch in self.switches}

    @cached_property
    def host_at(self) -> Mapping[int, Host]:
        """Hosts by IPv4 address."""
        return {host.ip: host for host in self.hosts}

    def reaches(self, switches: Container[str], ip: int) -> bool:
        """Whether one of these switches knows the port and the MAC address of a host of its own."""
        host = self.host_at.get(ip)
        return host is not None and host.mac is not None and host.place.switch in switches

    @cached_property
    def link_at(self) -> Mapping[Place, Link]:
        """The link at each port that has one."""
        return {end: link for link in self.links for end in link.ends}

    def graph(self, switches: Container[str], without: Container[Link] = ()) -> Any:
        """These switches as a networkx.MultiGraph, in order; its keys are the links between them."""
        graph = nx.MultiGraph()
        graph.add_nodes_from(switch.name for switch in self.switches if switch.name in switches)
        for link in self.links:
            ends = link.ends[0].switch, link.ends[1].switch
            if link not in without and all(end in switches for end in ends):
                graph.add_edge(*ends, link)
        return graph
