# SPDX-License-Identifier: Apache-2.0
"""The network that a controller serves, and what the addresses of workers and servers may be in it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from inagg_contract.addresses import Address, format_ip, parse_ip, parse_source
from inagg_contract.aggregation import SHARED
from inagg_contract.constants import INAGG_PORT, MEMBERS_BYTES
from inagg_contract.sizes import data_mtu
from inagg_controller.errors import ConflictError, ForeignAddressError, InvalidRequestError
from inagg_controller.fabric.topology import Place, Topology
from inagg_controller.jobs.job import Job
from inagg_controller.switch.entries import Member

# Where the topology comes from.
_SOURCE = "the controller's --host options or topology file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network that the controller serves, from its options.

    topology: without switches if all jobs are on servers. words: 256-byte words in a DATA packet. multicast: the first
    address for results (`JobTable`). mark_queue: packets in a port's queue beyond which packets of jobs are marked;
    None marks none. link_timeout_s: how long no beacon has to arrive for a link to be down. addresses: by the address
    that a host's requests come from, others of the same host.
    """

    topology: Topology
    words: int
    multicast: int | None = None
    mark_queue: int | None = None
    link_timeout_s: float = 5.0
    addresses: Mapping[Address, frozenset[int]] = field(default_factory=dict)

    def check_owner(self, ip: int, asker: str | None) -> None:
        """Check that a worker's address belongs to the host that registers it. Raises ForeignAddressError.

        asker: the address that the request comes from; None: the operator's, who may register any host. The TCP
        handshake has shown that the asker receives what is sent to its address. Whoever could register an address of
        another host could have switches and servers send to that host.
        """
        if asker is None:
            return
        with suppress(ValueError):
            source = parse_source(asker)
            if source == IPv4Address(ip) or ip in self.addresses.get(source, ()):
                return
        address, host = format_ip(ip), self.topology.host_at.get(ip)
        owner = "" if host is None else f", which {_SOURCE} place at {host.place},"
        raise ForeignAddressError(
            f"{address}{owner} is not known to be an address of the host that asks, {asker}. Register it with a "
            f"request that comes from {address}; or start the controller with --host-address {asker}={address} if both "
            f"are of one host, or with --proxy {asker} if that is a reverse proxy"
        )

    def check_address(self, ip: int, udp_port: int | None, what: str = "udp_port") -> None:
        """Refuse addresses at which a switch takes packets for its own. Raises InvalidRequestError.

        what: the name of the port in the request.
        """
        if udp_port is None:
            return
        if any(switch.ip == ip for switch in self.topology.switches):
            raise InvalidRequestError("ip is the aggregator's own")
        if udp_port == INAGG_PORT:
            raise InvalidRequestError(f"{what} {udp_port} is reserved for the aggregator")

    def rack_of(self, ip: int) -> str:
        """The name of a host's switch; empty if it is not known, or the only one."""
        host = self.topology.host_at.get(ip)
        return "" if host is None or len(self.topology.switches) == 1 else host.place.switch

    def check_mac(self, member: Member) -> None:
        """Refuse a MAC address of another host. Raises InvalidRequestError."""
        hosts = [host for host in self.topology.hosts if host.mac is not None]
        bound = {host.mac for host in hosts if host.ip == member.ip}
        if any(switch.mac == member.mac for switch in self.topology.switches):
            raise InvalidRequestError("mac is the aggregator's own")
        if bound and member.mac not in bound:
            raise InvalidRequestError(f"mac is not the one that {_SOURCE} name for this ip")
        if not bound and any(host.mac == member.mac for host in hosts):
            raise InvalidRequestError(f"mac is the one that {_SOURCE} name for another host")

    def check_leaf(self, job: Job, rank: int, switch: str) -> None:
        """Refuse a worker at another switch than that for which its job was created. Raises ConflictError."""
        leaf = job.placement.tree.leaf_of.get(rank)
        if leaf is not None and leaf.name != switch:
            raise ConflictError(
                f"rank {rank} is at switch {switch}, but job {job.id} was created for a worker at {leaf.name}"
            )

    def check_mtu(self, job: Job, mtu: int | None) -> None:
        """Check that a DATA packet fits the MTU of a worker's path; None: unknown. Raises InvalidRequestError."""
        # What goes from a switch to a server, perhaps the worker's own, says whose contributions it has.
        needed = data_mtu(self.words) + (MEMBERS_BYTES if job.placement.aggregation == SHARED else 0)
        if mtu is None or mtu >= needed:
            return
        whose = "switch" if job.placement.servers is None else "job"
        fewer = (
            "run the P4 program compiled with fewer WORDS"
            if self.topology.switches
            else "start the controller with fewer --words"
        )
        raise InvalidRequestError(
            f"mtu is {mtu}, but a DATA packet of this {whose} needs {needed} bytes (WORDS = {self.words}):"
            f" give every link on the way a larger MTU, or {fewer}"
        )

    def place_of(self, ip: int, udp_port: int, port: int | None) -> Place:
        """Where a worker is, from its request and from the topology. Raises InvalidRequestError."""
        self.check_address(ip, udp_port)
        host = self.topology.host_at.get(ip)
        if host is not None:
            if port not in (None, host.place.port):
                raise InvalidRequestError(f"port is {port}, but {_SOURCE} name {host.place.port} for this ip")
            return host.place
        if len(self.topology.switches) > 1:
            return self._place_of_host(ip)
        (switch,) = self.topology.switches
        if port is None:
            raise InvalidRequestError(f"port is missing, and {_SOURCE} name none for this ip")
        if port not in switch.ports:
            raise InvalidRequestError(f"port is {port}; the switch's ports are {list(switch.ports)}")
        place = Place(switch.name, port)
        if any(host.place == place and host.mac is not None for host in self.topology.hosts):
            raise InvalidRequestError(
                f"port is {port}, which {_SOURCE} bind to other addresses: name {format_ip(ip)} there too, with its MAC"
            )
        return place

    def switches_of(self, hosts: Sequence[str] | None) -> list[str] | None:
        """The switch of each rank's host; None if there is at most one switch. Raises InvalidRequestError.

        hosts: their addresses, by rank; None: not given.
        """
        if len(self.topology.switches) <= 1:
            return None
        if hosts is None:
            raise InvalidRequestError(
                "hosts is missing: this controller has several switches, so it must know where the workers are"
            )
        return [self._place_of_host(parse_ip(ip)).switch for ip in hosts]

    def _place_of_host(self, ip: int) -> Place:
        host = self.topology.host_at.get(ip)
        if host is None:
            raise InvalidRequestError(f"the topology file names no host with the address {format_ip(ip)}")
        return host.place
