# SPDX-License-Identifier: Apache-2.0
"""Jobs on shared slots in virtual time, frame by frame: hosts at compiled P4 programs, which have the entries that the
controller makes of the same jobs and the same network.

Links are numbered: those of all jobs' workers, then those of all servers, then the cables between switches. A server in
a worker's process has a link of its own, to the same port.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inagg._core import ServedJob
from inagg_contract.addresses import format_ip, format_mac, parse_ip
from inagg_contract.aggregation import SHARED
from inagg_contract.constants import ECN_BITS, INAGG_PORT
from inagg_contract.sizes import way_of
from inagg_controller.errors import UnavailableError
from inagg_controller.fabric.ordinary import OrdinaryTree
from inagg_controller.fabric.topology import Host, Link, Place, SwitchNode, Topology
from inagg_controller.jobs.effects import Install
from inagg_controller.jobs.epochs import Epochs
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.limits import Limits, Policy
from inagg_controller.jobs.planning import JobRequest
from inagg_controller.jobs.table import JobTable
from inagg_controller.switch.entries import (
    DISPLACEMENT,
    Member,
    TableEntry,
    aggregator_entries,
    binding_entries,
    flood_group,
)
from inagg_simulator.fabric import Fabric, Hop
from inagg_simulator.p4_switch import Station, headers, job_group
from inagg_simulator.reference import DATA, RESULT, decode
from inagg_simulator.servers import make_servers
from inagg_switch.switch import Switch

PORTS = tuple(range(1, 200))
FIRST_CABLE = 150  # the port of the first cable
MULTICAST = 0xEFC0_0000  # 239.192.0.0
HEADERS = struct.Struct("!6s6sH BBHHHBBH4s4s HHHH")
OWN_TTL = 64


@dataclass(frozen=True, kw_only=True)
class SharedJob:
    """A job. at: the switch of each worker's host. colocated: its servers are in the workers' processes."""

    at: tuple[int, ...]
    slots: int
    colocated: bool = True
    priority: int = 0
    first_chunk: int = 0

    @property
    def workers(self) -> int:
        return len(self.at)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """size: of each switch's shared slots. expiry_us: the age from which what a slot holds may be evicted."""

    size: int
    slot_versions: int
    expiry_us: int = 20_000


class Nic(NamedTuple):
    """A host, or a server's or worker's socket on it. place: its port."""

    station: Station
    place: Place


class Frame(NamedTuple):
    """Who sent it, to whom, and the UDP payload."""

    source: Station
    destination: Station
    payload: bytes


def unwrap(frame: bytes) -> Frame:
    """Checks every field of the outer headers that a switch may write."""
    to_mac, from_mac, *ip, source, to, source_port, to_port, udp_length, checksum = HEADERS.unpack_from(frame)
    ether_type, version, tos, length, _, fragment, ttl, protocol, _ = ip
    payload = frame[HEADERS.size :]
    assert (ether_type, version, tos & ~ECN_BITS, fragment, ttl, protocol) == (
        0x0800,
        0x45,
        0,
        0,
        OWN_TTL,
        17,
    )
    assert (length, udp_length, checksum) == (28 + len(payload), 8 + len(payload), 0)
    assert sum(struct.unpack_from("!10H", frame, 14)) % 0xFFFF == 0
    return Frame(
        Station(from_mac.hex(":"), ".".join(map(str, source)), source_port),
        Station(to_mac.hex(":"), ".".join(map(str, to)), to_port),
        payload,
    )


def make_topology(above: Sequence[int], jobs: Sequence[SharedJob], servers: Sequence[int]) -> Topology:
    """Switches s0, s1, ...: s(i + 1) is below s(above[i]). servers: the switch of each server's host."""
    free = [1] * (len(above) + 1)

    def host(name: str, ip: str, switch: int) -> Host:
        place = Place(f"s{switch}", free[switch])
        free[switch] += 1
        return Host(name, parse_ip(ip), 0x02_00_00_00_00_00 + parse_ip(ip), place)

    return Topology(
        switches=tuple(
            SwitchNode(f"s{i}", "", 0, parse_ip(f"10.1.0.{i + 1}"), 0x02_49_41_00_01_00 + i, PORTS)
            for i in range(len(above) + 1)
        ),
        links=tuple(
            Link((Place(f"s{upper}", FIRST_CABLE + i + 1), Place(f"s{i + 1}", FIRST_CABLE)))
            for i, upper in enumerate(above)
        ),
        hosts=(
            *(
                host(f"h{number}-{rank}", f"10.0.{number}.{rank + 1}", switch)
                for number, one in enumerate(jobs)
                for rank, switch in enumerate(one.at)
            ),
            *(host(f"server{i}", f"10.0.200.{i + 1}", switch) for i, switch in enumerate(servers)),
        ),
    )


def make_jobs(
    topology: Topology, jobs: Sequence[SharedJob], pool: Pool, epochs: Epochs
) -> tuple[list[Job], list[Install]]:
    """The jobs as the controller has them when all ranks have registered, and what it installs.

    A job whose switches have no registered servers gets colocated ones.
    """
    limits = Limits(
        slot_versions=pool.slot_versions,
        shared_slots=pool.size,
        shared_expiry_us=pool.expiry_us,
        host_share=1.0,
    )
    table = JobTable(topology, limits, Policy(), epochs=epochs, now=0.0, words=1, multicast=MULTICAST)
    for switch in topology.switches:
        table.switches.connected(switch.name)
    for host in topology.hosts:
        if host.name.startswith("server"):
            table.servers.register(host.name, host.ip, 50000, 2**30, 0.0)
    made = []
    for number, one in enumerate(jobs):
        at = [f"s{switch}" for switch in one.at]

        def create(colocated: bool, one: SharedJob = one, at: Sequence[str] = at) -> Job:
            request = JobRequest(
                aggregation=SHARED,
                workers=one.workers,
                slots=one.slots,
                at=at,
                colocated=colocated,
                priority=one.priority,
            )
            return table.create(request, 0.0)

        try:
            job = create(one.colocated)
        except UnavailableError:
            job = create(True)
        job.placement.first_chunk = one.first_chunk
        hosts = [host for host in topology.hosts if host.name.startswith(f"h{number}-")]
        for rank, host in enumerate(hosts):
            assert host.mac is not None
            table.register(job.id, Member(rank, host.ip, host.mac, 40000 + rank, host.place.port, 50000), 0.0)
        made.append(job)
    installs = [effect for effect in table.switches.effects if isinstance(effect, Install)]
    assert [install.job for install in installs] == [job.id for job in made]
    return made, installs


class SharedFabric(Fabric):
    """Switches and servers of all jobs. programs: of the switches. clock: seconds.

    Remove its entries with `remove`; the slots keep what they have. summed: DATA chunks with a result, by the job's
    number here. displaced: contributions that took slots from a job, by its number here, the switch and whether what
    was there had expired; known when its entries are removed.
    """

    def __init__(
        self,
        programs: Sequence[Switch],
        above: Sequence[int],
        jobs: Sequence[SharedJob],
        pool: Pool,
        *,
        servers: Sequence[int] = (),
        epochs: Epochs | None = None,
    ) -> None:
        self.topology = make_topology(above, jobs, servers)
        self.jobs, installs = make_jobs(self.topology, jobs, pool, epochs or Epochs.fresh())
        self.clock: Callable[[], float] = lambda: 0.0
        self._programs = dict(zip(self.topology.by_name, programs, strict=False))
        self._inserted: list[tuple[str, TableEntry]] = []
        self._groups: list[tuple[str, int]] = []
        ordinary = OrdinaryTree.shortest(self.topology)
        for switch in self.topology.switches:
            self._insert(switch.name, binding_entries(ordinary.bindings(switch.name)))
            self._insert(switch.name, aggregator_entries(switch.ip, switch.mac))
            self._set_group(switch.name, 1, flood_group(ordinary.flooded(switch.name)).replicas)
        for install in installs:
            for name, entries in install.entries.items():
                self._insert(name, entries.receivers)
                self._set_group(name, entries.group.group, entries.group.replicas)
                self._insert(name, entries.admissions)
        self._nics: list[Nic] = []
        self._servers: list[ServedJob] = []
        self._job_of: list[Job] = []  # by link
        self._links: dict[tuple[Place, str, int, int], int] = {}  # (place, IPv4 address, UDP port, job)
        for job in self.jobs:
            for rank in range(job.workers):
                member = job.members[rank]
                assert isinstance(member, Member)
                station = Station(format_mac(member.mac), format_ip(member.ip), member.udp_port)
                place = Place(job.placement.tree.leaf_of[rank].name, member.port)
                self._attach(job, Nic(station, place))
                if job.placement.results_ip is not None:
                    at = place, format_ip(job.placement.results_ip), INAGG_PORT, job.id
                    self._links[at] = len(self._nics) - 1
        for job in self.jobs:
            assert job.placement.servers is not None
            for seat in job.placement.servers.seats:
                host = self.topology.host_at[seat.ip]
                assert host.mac is not None
                station = Station(format_mac(host.mac), format_ip(seat.ip), seat.udp_port)
                self._attach(job, Nic(station, host.place))
            self._servers += make_servers(
                job.placement.servers.count,
                job=job.id,
                epoch=job.placement.epoch,
                slots=job.slots,
                words=1,
                workers=job.workers,
                first_chunk=job.placement.first_chunk,
                relayed=True,
                homes=job.placement.homes,
            )
        self._workers = sum(job.workers for job in self.jobs)
        self.packets: Counter[tuple[int, bool]] = Counter()  # by link, up or not, that have arrived
        self.summed: set[tuple[int, int]] = set()
        self.displaced: Counter[tuple[int, int, bool]] = Counter()

    def _attach(self, job: Job, nic: Nic) -> None:
        self._links[nic.place, nic.station.ip, nic.station.udp_port, job.id] = len(self._nics)
        self._nics.append(nic)
        self._job_of.append(job)

    def _insert(self, switch: str, entries: Iterable[TableEntry]) -> None:
        for entry in entries:
            table, action = (name.rpartition(".")[2] for name in (entry.table, entry.action))
            self._programs[switch].insert(table, dict(entry.match), action, dict(entry.params))
            self._inserted.append((switch, entry))

    def _set_group(self, switch: str, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._programs[switch].multicast_group(group, list(replicas))
        self._groups.append((switch, group))

    def remove(self) -> None:
        numbers = {job.id: number for number, job in enumerate(self.jobs)}
        for switch, entry in self._inserted:
            program, table, match = self._programs[switch], entry.table.rpartition(".")[2], dict(entry.match)
            if entry.table == DISPLACEMENT:
                packets, _ = program.direct_counter(table, match)
                self.displaced[numbers[match["job"]], int(switch[1:]), bool(match["expired"])] += packets
            program.delete(table, match)
        for switch, group in self._groups:
            self._programs[switch].multicast_group(group, [])

    def up(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """See Fabric. Only workers send datagrams; others send frames."""
        if link < self._workers:
            job = self._job_of[link]
            rank = link - self._job_of.index(job)
            if self._home(job, datagram) == rank:  # it does not leave the host
                return self._at_server(self._server_links(job)[rank], datagram, rank)
        self.packets[link, True] += 1
        if link >= len(self._nics):
            return self._process(self._cable(link).ends[0], datagram)
        return self.arrive(link, self.frame(link, datagram) if link < self._workers else datagram)

    def station(self, link: int) -> Station:
        """The addresses of a worker or server."""
        return self._nics[link].station

    def frame(self, link: int, datagram: bytes) -> bytes:
        """The frame of a worker's packet."""
        nic = self._nics[link]
        return headers(nic.station, self._aggregator(nic.place.switch), len(datagram)) + datagram

    def arrive(self, link: int, frame: bytes) -> list[Hop]:
        """The same as `up` of a frame of any host."""
        return self._process(self._nics[link].place, frame)

    def from_server(self, server: int, datagram: bytes) -> list[Hop]:
        """What comes of a packet from a server to the switch that sends results: all hops until hosts have it."""
        link = self._workers + server
        nic, job = self._nics[link], self._job_of[link]
        hops = list(self.up(link, headers(nic.station, self._root(job), len(datagram)) + datagram))
        for hop in hops:
            if hop.link >= len(self._nics):
                hops += self.up(hop.link, hop.datagram) if hop.up else self.down(hop.link, hop.datagram)
        return hops

    def down(self, link: int, datagram: bytes) -> Iterable[Hop]:
        """See Fabric."""
        self.packets[link, False] += 1
        if link >= len(self._nics):
            return self._process(self._cable(link).ends[1], datagram)
        frame = unwrap(datagram)
        assert frame.source == self._root(self._job_of[link])
        assert frame.destination == self._nics[link].station
        return self._at_server(link, frame.payload, None)

    def _at_server(self, link: int, datagram: bytes, rank: int | None) -> list[Hop]:
        """What a server sends because of a packet from the switch, or from the rank at home."""
        nic, job = self._nics[link], self._job_of[link]
        first = self._job_of.index(job)
        hops = []
        for receiver, left in self._servers[link - self._workers].receive(datagram, rank):
            header = decode(left)
            if header.kind == DATA | RESULT:
                self.summed.add((self.jobs.index(job), header.chunk))
            home = self._home(job, left)
            for to in {None, home} if receiver is None else {receiver}:
                station = self._root(job) if to is None else self._nics[first + to].station
                if to is not None and station.ip == nic.station.ip:  # it does not leave the host
                    hops.append(Hop(first + to, False, left))
                else:
                    hops.append(Hop(link, True, headers(nic.station, station, len(left)) + left))
        return hops

    def _home(self, job: Job, datagram: bytes) -> int | None:
        """The rank in whose process the server of a packet's chunk runs, which is also the server's index."""
        homes = job.placement.homes
        return homes[way_of(decode(datagram).chunk, job.slots, len(homes))] if homes else None

    def _server_links(self, job: Job) -> list[int]:
        """The links of a job's servers, by index."""
        return [link for link in range(self._workers, len(self._nics)) if self._job_of[link] is job]

    def _root(self, job: Job) -> Station:
        return self._aggregator(job.placement.tree.switches[0].name)

    def _process(self, place: Place, frame: bytes) -> list[Hop]:
        switch, port = place
        left = self._programs[switch].process(port, frame, self.clock())
        return [self._hop(Place(switch, port), out) for port, out in left]

    def _hop(self, place: Place, frame: bytes) -> Hop:
        """Of a frame that leaves by a port."""
        cable = self.topology.link_at.get(place)
        if cable is not None:
            return Hop(len(self._nics) + self.topology.links.index(cable), place == cable.ends[1], frame)
        source, to, payload = unwrap(frame)
        link = self._links[place, to.ip, to.udp_port, decode(payload).job]
        if link >= self._workers:
            return Hop(link, False, frame)
        # As the worker's socket does: it takes packets of its switch, and of the job's servers.
        job = self._job_of[link]
        servers = [
            nic.station
            for nic, other in zip(self._nics[self._workers :], self._job_of[self._workers :], strict=True)
            if other is job
        ]
        assert source in [self._aggregator(place.switch), *servers]
        assert to.mac in (self._nics[link].station.mac, job_group(job.id).mac)
        return Hop(link, False, payload)

    def _cable(self, link: int) -> Link:
        return self.topology.links[link - len(self._nics)]

    def _aggregator(self, switch: str) -> Station:
        node = self.topology.by_name[switch]
        return Station(format_mac(node.mac), format_ip(node.ip), INAGG_PORT)

    def counter(self, name: str, switch: int = 0) -> int:
        """Packets that a counter of a switch has counted since the program was loaded, at all ports."""
        counter = self._programs[f"s{switch}"].counter(name)
        return sum(counter[port][0] for port in PORTS)

    def counter_at(self, name: str, port: int, switch: int = 0) -> int:
        """The same at one port."""
        return self._programs[f"s{switch}"].counter(name)[port][0]

    def counts(self, job: int) -> Counter[str]:
        """Packets by outcome at a job's servers, without zeros."""
        total: Counter[str] = Counter()
        for server, other in zip(self._servers, self._job_of[self._workers :], strict=True):
            if other is self.jobs[job]:
                total.update(server.counts)
        return +total

    def chunks(self, job: int) -> Counter[str]:
        """Completed DATA chunks by where they were summed, without zeros."""
        total: Counter[str] = Counter()
        for server, other in zip(self._servers, self._job_of[self._workers :], strict=True):
            if other is self.jobs[job]:
                total.update(server.chunks)
        return +total
