# SPDX-License-Identifier: Apache-2.0
"""What is behind the links of a world's hosts: switches, cables between them, and servers.

Links are numbered: those of ranks, of the servers in their processes, of registered servers, and cables.
"""

from collections.abc import Iterable, Sequence

from inagg_contract.addresses import format_ip, format_mac
from inagg_contract.constants import INAGG_PORT
from inagg_controller.fabric.topology import Link, Place, Topology
from inagg_simulator.fabric import Fabric, Hop
from inagg_simulator.p4_switch import Station
from inagg_simulator.shared_fabric import unwrap
from tests.simulation.servers import Addresses, Server
from tests.simulation.switches import Programs, SwitchBox

WORKER_PORT, SERVER_PORT = 4000, 5000
# Where a frame has the UDP port that it goes to, and the port of switches.
_UDP_PORT, _AGGREGATORS = slice(36, 38), INAGG_PORT.to_bytes(2, "big")


class Wires(Fabric):
    """boxes: the switches by name. servers: those that run, by address and port. now: the time. broken: the cables that
    pass nothing."""

    def __init__(self, topology: Topology, ranks: int, programs: Programs) -> None:
        self.topology = topology
        self.now = 0.0
        self.broken: set[Link] = set()
        nodes = topology.switches
        self.boxes = {
            node.name: SwitchBox(node, topology, program)
            for node, program in zip(nodes, programs.take(len(nodes)), strict=True)
        }
        self.ranks = Addresses([self._station(link, WORKER_PORT) for link in range(ranks)])
        self.servers: dict[tuple[str, int], Server] = {}
        self.first_cable = ranks + len(topology.hosts)
        self._host_at = {host.place: number for number, host in enumerate(topology.hosts)}
        self._cable_at = {end: number for number, link in enumerate(topology.links) for end in link.ends}

    @property
    def links(self) -> int:
        """How many there are."""
        return self.first_cable + len(self.topology.links)

    def _station(self, host: int, udp_port: int) -> Station:
        at = self.topology.hosts[host]
        assert at.mac is not None
        return Station(format_mac(at.mac), format_ip(at.ip), udp_port)

    def start_server(self, host: int, udp_port: int = SERVER_PORT) -> Server:
        """A server starts at a host."""
        station = self._station(host, udp_port)
        server = Server(station, len(self.ranks.stations) + host, self.ranks)
        self.servers[station.ip, udp_port] = server
        return server

    def end_server(self, server: Server) -> None:
        """It ends."""
        self.servers.pop((server.station.ip, server.station.udp_port), None)

    def passes(self, link: Link) -> bool:
        """Whether a link between switches passes packets."""
        return link not in self.broken and all(self.boxes[end.switch].works for end in link.ends)

    def close(self) -> None:
        """Leave the programs of the switches empty."""
        for box in self.boxes.values():
            box.close()

    def up(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """See Fabric."""
        if link >= self.first_cable:
            return self._process(self.topology.links[link - self.first_cable].ends[0], datagram)
        ranks = len(self.ranks.stations)
        if link < ranks and datagram[_UDP_PORT] != _AGGREGATORS:  # to a server past the switches
            to = unwrap(datagram).destination
            server = self.servers.get((to.ip, to.udp_port))
            return [] if server is None else [Hop(server.link, False, datagram)]
        host = link if link < ranks else link - ranks
        return self._process(self.topology.hosts[host].place, datagram)

    def down(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """See Fabric."""
        if link >= self.first_cable:
            return self._process(self.topology.links[link - self.first_cable].ends[1], datagram)
        frame = unwrap(datagram)
        server = self.servers.get((frame.destination.ip, frame.destination.udp_port))
        return [] if server is None else server.receive(frame)

    def _process(self, place: Place, frame: bytes) -> list[Hop]:
        left = self.boxes[place.switch].process(place.port, frame, self.now)
        return [hop for port, out in left for hop in self._hop(Place(place.switch, port), out)]

    def _hop(self, place: Place, frame: bytes) -> Sequence[Hop]:
        """Of a frame that leaves by a port; none if no socket takes it there."""
        cable = self._cable_at.get(place)
        if cable is not None:
            link = self.topology.links[cable]
            lower = place == link.ends[1]
            return [] if link in self.broken else [Hop(self.first_cable + cable, lower, frame)]
        host = self._host_at[place]
        _, to, payload = unwrap(frame)
        ranks = self.ranks.stations
        if host < len(ranks) and (to.udp_port == INAGG_PORT or to == ranks[host]):
            return [Hop(host, False, payload)]
        server = self.servers.get((to.ip, to.udp_port))
        return [] if server is None else [Hop(server.link, False, frame)]
