# SPDX-License-Identifier: Apache-2.0
"""Which links ordinary traffic uses: they close no circle, so no frame travels for ever."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import networkx as nx

from inagg_controller.fabric.topology import Link, Place, Topology
from inagg_controller.switch.entries import Binding


@dataclass(frozen=True)
class OrdinaryTree:
    """The links that ordinary traffic uses, of a topology: they have no loop."""

    topology: Topology
    links: frozenset[Link]

    @classmethod
    def shortest(cls, topology: Topology) -> "OrdinaryTree":
        """The shortest ways to the switch from which the farthest one is nearest; the first of several."""
        graph = topology.graph(topology.by_name)
        links: list[Link] = []
        for part in nx.connected_components(graph):
            centers = nx.center(graph.subgraph(part))
            center = next(switch.name for switch in topology.switches if switch.name in centers)
            links += [next(iter(graph[above][below])) for above, below in nx.bfs_edges(graph, center)]
        return cls(topology, frozenset(links))

    @classmethod
    def named(cls, topology: Topology, names: Sequence[str]) -> "OrdinaryTree | None":
        """The tree of these links (`str`); None if they are no tree of this topology."""
        links = frozenset(link for link in topology.links if str(link) in names)
        tree = cls(topology, links)
        return tree if len(links) == len(names) and tree.around((), ()).links >= links else None

    def around(self, down: Container[Link], away: Container[str]) -> "OrdinaryTree":
        """A tree that joins what live links join. Links of this tree that live stay in it.

        So nothing moves unless it must, and what goes around a link goes on doing so when the link is back.

        down: links that pass no packets. away: switches that the controller does not reach. Such a switch may still
        forward, by its links of this tree. So it keeps all of them if they close no circle, and else has none, and
        nobody floods to it.
        """
        joined, links = nx.utils.UnionFind(), []
        for link in sorted(self.topology.links, key=lambda link: link not in self.links):
            one, other = (end.switch for end in link.ends)
            if link not in down and one not in away and other not in away and joined[one] != joined[other]:
                joined.union(one, other)
                links.append(link)
        for group in self._neighbours(away):
            kept = [link for link in self.links if any(end.switch in group for end in link.ends)]
            others = [end.switch for link in kept for end in link.ends if end.switch not in group]
            if len({joined[other] for other in others}) == len(others):
                joined.union(*group, *others)
                links += kept
        found = frozenset(links)
        return self if found == self.links else OrdinaryTree(self.topology, found)

    def reaches(self, name: str) -> bool:
        """Whether a switch has a link in the tree."""
        return any(end.switch == name for link in self.links for end in link.ends)

    def flooded(self, name: str) -> tuple[int, ...]:
        """The ports of a switch to which ordinary traffic is flooded: all but those of links outside the tree."""
        return tuple(
            port
            for port in self.topology.by_name[name].ports
            if (link := self.topology.link_at.get(Place(name, port))) is None or link in self.links
        )

    def bindings(self, name: str) -> tuple[Binding, ...]:
        """Which ordinary traffic may come to a switch by which port: of bound hosts, and of other aggregators.

        What belongs to another switch comes by the link towards it, which other stations may use too. What the tree
        does not join has the shortest way.
        """
        ways = self._ways(name)
        if len(ways) < len(self.topology.switches) - 1:
            ways = self.shortest(self.topology)._ways(name) | ways
        hosts = [(host.place, host.ip, host.mac) for host in self.topology.hosts if host.mac is not None]
        own = [Binding(ip=ip, mac=mac, port=at.port) for at, ip, mac in hosts if at.switch == name]
        elsewhere = [(at.switch, ip, mac) for at, ip, mac in hosts]
        elsewhere += [(switch.name, switch.ip, switch.mac) for switch in self.topology.switches]
        return (
            *own,
            *(
                Binding(ip=ip, mac=mac, port=ways[switch], shared=True)
                for switch, ip, mac in elsewhere
                if switch in ways
            ),
        )

    def _neighbours(self, away: Container[str]) -> Iterator[set[str]]:
        """The switches that are away, those together that links of the tree join."""
        graph = nx.Graph()
        graph.add_nodes_from(switch.name for switch in self.topology.switches if switch.name in away)
        pairs = [tuple(end.switch for end in link.ends) for link in self.links]
        graph.add_edges_from(pair for pair in pairs if all(name in graph for name in pair))
        yield from nx.connected_components(graph)

    def _ways(self, name: str) -> dict[str, int]:
        """The ports of a switch that lead to the others, by their names."""
        graph = nx.Graph()
        graph.add_node(name)
        for link in self.links:
            graph.add_edge(*(end.switch for end in link.ends), link=link)
        return {
            other: graph[name][path[1]]["link"].end_at(name).port
            for other, path in nx.single_source_shortest_path(graph, name).items()
            if other != name
        }
