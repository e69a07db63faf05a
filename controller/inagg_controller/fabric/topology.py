# SPDX-License-Identifier: Apache-2.0
"""Switches, the links between their ports, and hosts. Addresses are integers."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import networkx as nx

from inagg_controller.switch.entries import Binding


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

    @cached_property
    def ordinary(self) -> Any:
        """A networkx.Graph without a loop, each edge with its `link`: ordinary traffic keeps to these links.

        They are the shortest ways to the switch from which the farthest one is nearest; the first of several.
        """
        graph, tree = self.graph(self.by_name), nx.Graph()
        tree.add_nodes_from(graph)
        for part in nx.connected_components(graph):
            centers = nx.center(graph.subgraph(part))
            center = next(switch.name for switch in self.switches if switch.name in centers)
            for above, below in nx.bfs_edges(graph, center):
                tree.add_edge(above, below, link=next(iter(graph[above][below])))
        return tree

    @cached_property
    def ordinary_links(self) -> frozenset[Link]:
        """The links of `ordinary`."""
        return frozenset(link for _, _, link in self.ordinary.edges(data="link"))

    def flooded(self, name: str) -> tuple[int, ...]:
        """The ports of a switch to which ordinary traffic is flooded: all but those of links outside the tree."""
        return tuple(
            port
            for port in self.by_name[name].ports
            if (link := self.link_at.get(Place(name, port))) is None or link in self.ordinary_links
        )

    def bindings(self, name: str) -> Sequence[Binding]:
        """Which ordinary traffic may come to a switch by which port: of bound hosts, and of other aggregators.

        What belongs to another switch comes by the link towards it, which other stations may use too.
        """
        ways = {
            other: self.ordinary[name][path[1]]["link"].end_at(name).port
            for other, path in nx.single_source_shortest_path(self.ordinary, name).items()
            if other != name
        }
        own = [
            Binding(ip=host.ip, mac=host.mac, port=host.place.port)
            for host in self.hosts
            if host.mac is not None and host.place.switch == name
        ]
        elsewhere = [(host.place.switch, host.ip, host.mac) for host in self.hosts if host.mac is not None]
        elsewhere += [(switch.name, switch.ip, switch.mac) for switch in self.switches]
        return own + [
            Binding(ip=ip, mac=mac, port=ways[switch], shared=True)
            for switch, ip, mac in elsewhere
            if switch in ways
        ]
