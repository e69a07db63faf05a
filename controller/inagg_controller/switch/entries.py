# SPDX-License-Identifier: Apache-2.0
"""The entries that the controller writes into the switch, as values named as in the P4 sources.

Addresses are integers, as in the tables.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from inagg_contract.addresses import multicast_mac
from inagg_contract.constants import ALL_RANKS, FLOOD_GROUP, INAGG_PORT
from inagg_contract.sizes import run_bits

ADMISSION = "InaggIngress.admission.admission"
RECEIVER = "InaggEgress.delivery.receiver"
_DELIVER = "InaggEgress.delivery.deliver"
ARP_RESPONDER = "InaggIngress.arp_responder.arp_responder"
PING_RESPONDER = "InaggIngress.ping_responder.ping_responder"
_GUARD = "InaggIngress.source_guard"
SOURCE_MAC, SOURCE_IP, BOUND_PORT = (f"{_GUARD}.{name}" for name in ("source_mac", "source_ip", "bound_port"))
STATION = "InaggIngress.l2.station"
PARENT = "InaggIngress.admission.parent"
UPLINK = "InaggIngress.slots.uplink"
LONGEST_QUEUE = (1 << 19) - 1  # packets; what the program can compare
QUEUE = "InaggEgress.mark_congestion.queue"
SHARING = "InaggIngress.shared_slots.sharing"
SERVER = "InaggIngress.shared_slots.server"
HOME = "InaggEgress.delivery.home"
DISPLACEMENT = "InaggIngress.shared_slots.displacement"
LINKED_PORT = "InaggIngress.beacons.linked_port"
LOSS_TABLES = {
    "ingress": ("InaggIngress.ingress_loss.ingress_loss", "InaggIngress.ingress_loss.inject_ingress_loss"),
    "egress": ("InaggEgress.egress_loss.egress_loss", "InaggEgress.egress_loss.inject_egress_loss"),
}


_HIGHEST_THRESHOLD = 2**32 - 1


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One entry of an exact-match table. match, params: (name, value) pairs in the P4 program's order."""

    table: str
    match: tuple[tuple[str, int], ...]
    action: str
    params: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class MulticastGroup:
    """A multicast group. replicas: (switch port, replication id) pairs, all different."""

    group: int
    replicas: tuple[tuple[int, int], ...]


Entity = TableEntry | MulticastGroup


@dataclass(frozen=True, slots=True)
class Member:
    """Where a worker, or a switch that sums for a switch, gets its results. port: the port towards it.

    rank: the number by which the switch knows it; in `Job.members` the rank of the worker. server_udp_port: of the
    server in the worker's process; None: it runs none. host: the name of the worker's host, for messages.
    """

    rank: int
    ip: int
    mac: int
    udp_port: int
    port: int
    server_udp_port: int | None = None
    host: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SharedServer:
    """A server of a job on shared slots. port: the switch port towards it."""

    ip: int
    mac: int
    udp_port: int
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How a job uses the slots that jobs share at one switch (docs/protocol.md, 5.7).

    base, size: the first of these slots, and their number. offset: of chunk 0 from there. bits: of the ranks below each
    member, by its number. servers: those below the switch, in the order of their index; at the root all.
    homes: the ranks that send to the servers in their processes past the switch. home_ports: their ports, by rank,
    behind which is no other rank. priority: the job evicts what jobs of a lower one have in a slot. expiry_us: age
    after which any job may.
    """

    base: int
    size: int
    offset: int
    bits: Mapping[int, int]
    servers: tuple[SharedServer, ...]
    homes: tuple[int, ...]
    home_ports: Mapping[int, int]
    priority: int
    expiry_us: int


@dataclass(frozen=True, slots=True)
class Parent:
    """A switch above. ip, mac: of its aggregator. port: towards it. rank: this switch's member number there."""

    ip: int
    mac: int
    port: int
    rank: int


@dataclass(frozen=True, slots=True)
class Binding:
    """Binds a station's addresses to a switch port: no other port may use them. ip, mac: as integers.

    shared: stations that are not bound may use the port too.
    """

    ip: int
    mac: int
    port: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class JobEntries:
    """All entries of one job in one switch.

    Receivers and the group are installed before admissions, so that the first admitted packet's result can be
    delivered. Removal is in reverse, so that no sum completes that cannot be delivered.

    receivers: for results, and towards the switches above or the servers. admissions: of the members, and of results
    from above.
    """

    job: int
    receivers: tuple[TableEntry, ...]
    group: MulticastGroup
    admissions: tuple[TableEntry, ...]

    @property
    def stages(self) -> tuple[tuple[Entity, ...], ...]:
        """Batches to insert one after another; removal takes them in reverse."""
        return self.receivers, (self.group,), self.admissions


def job_entries(
    *,
    job: int,
    epoch: int,
    group: int,
    members: Mapping[int, Member],
    first_chunk: int = 0,
    slot_base: int = 0,
    slots: int = 0,
    sharing: Sharing | None = None,
    results_ip: int | None = None,
    parents: Sequence[Parent] = (),
    own: tuple[int, int] = (0, 0),
) -> JobEntries:
    """The entries of a complete job in one switch (docs/protocol.md, 5.1, 5.3, 5.5 and 5.7).

    members: by number, all of them. first_chunk: f. slots: S. slot_base: of its lease; sharing: if it has none.
    results_ip: the multicast address of the job's results; None: each member's own. parents: the switches above, in
    turns; a job on shared slots has one at most. own: (MAC, IPv4) address of this switch's aggregator, for results from
    them and from servers.
    """
    ranks = sorted(members)
    bits = {rank: 1 << rank for rank in ranks} if sharing is None else sharing.bits
    receivers = [_receiver(job, members[rank]) for rank in ranks]
    if results_ip is not None:
        to_all = (("mac", multicast_mac(results_ip)), ("ip", results_ip), ("udp_port", INAGG_PORT))
        receivers.append(TableEntry(RECEIVER, (("job", job), ("rank", ALL_RANKS)), _DELIVER, to_all))
    lease = (
        ("all", sum(bits.values())),
        ("slot_base", slot_base),
        # The program knows a job without a lease by this mask.
        ("slot_mask", 2 * slots - 1 if sharing is None else 0),
        ("epoch", epoch),
        ("result_group", group),
    )
    arrival = (*lease, ("mac", own[0]), ("ip", own[1]), ("first_port", members[ranks[0]].port))
    servers = () if sharing is None else sharing.servers
    # Several servers may be at one host.
    relayed = dict.fromkeys((one.port, one.ip) for one in servers if parents)
    sources = dict.fromkeys((one.port, one.ip) for one in parents or servers)
    return JobEntries(
        job=job,
        receivers=(
            *receivers,
            *(
                [_uplink(job, turn, parent) for turn, parent in enumerate(parents)]
                if sharing is None
                else _sharing(job, sharing, slots, parents, own)
            ),
        ),
        group=unicast_group(group, members) if results_ip is None else _multicast_group(group, members),
        admissions=(
            *(_result_admission(job, port, ip, arrival) for port, ip in sources),
            *(_relay(job, port, ip, epoch, parents[0].port) for port, ip in relayed),
            *(
                TableEntry(
                    ADMISSION,
                    (("port", member.port), ("source", member.ip), ("job", job), ("rank", member.rank)),
                    "InaggIngress.admission.admit",
                    (
                        ("member", bits[member.rank]),
                        *lease,
                        ("first_chunk", first_chunk),
                        ("parents", len(parents)),
                        ("run_bits", run_bits(slots, len(parents))),
                    ),
                )
                for member in (members[rank] for rank in ranks)
            ),
        ),
    )


def _uplink(job: int, turn: int, parent: Parent) -> TableEntry:
    return TableEntry(
        UPLINK,
        (("job", job), ("parent", turn)),
        "InaggIngress.slots.send_up",
        (("port", parent.port), ("mac", parent.mac), ("ip", parent.ip), ("rank", parent.rank)),
    )


def _sharing(
    job: int, sharing: Sharing, slots: int, parents: Sequence[Parent], own: tuple[int, int]
) -> Iterator[TableEntry]:
    """The entries that lead a job to its servers, or to the switch above, and to the slots on the way, that keep a
    result from a rank that has it already, and that count when the job loses a slot."""
    ways: list[tuple[Parent | SharedServer, int, int]] = [(one, INAGG_PORT, one.rank) for one in parents]
    ways = ways or [(one, one.udp_port, 0) for one in sharing.servers]
    for index, (to, udp_port, rank) in enumerate(ways):
        yield TableEntry(
            SERVER,
            (("job", job), ("server", index)),
            "InaggIngress.shared_slots.send",
            (("port", to.port), ("mac", to.mac), ("ip", to.ip), ("udp_port", udp_port), ("rank", rank)),
        )
    yield TableEntry(
        SHARING,
        (("job", job),),
        "InaggIngress.shared_slots.share",
        (
            ("base", sharing.base),
            ("mask", sharing.size - 1),
            ("offset", sharing.offset),
            ("servers", len(ways)),
            ("run_bits", run_bits(slots, len(ways))),
            ("homes", sum(1 << rank for rank in sharing.homes)),
            ("job_priority", sharing.priority),
            ("expiry_us", sharing.expiry_us),
            ("mac", own[0]),
            ("ip", own[1]),
        ),
    )
    for rank, port in sharing.home_ports.items():
        yield TableEntry(
            HOME, (("job", job), ("rank", rank), ("port", port)), "InaggEgress.delivery.skip", ()
        )
    for expired in (0, 1):
        match = (("job", job), ("expired", expired))
        yield TableEntry(DISPLACEMENT, match, "InaggIngress.shared_slots.count_displaced", ())


def _relay(job: int, port: int, ip: int, epoch: int, up: int) -> TableEntry:
    return TableEntry(
        PARENT,
        (("port", port), ("source", ip), ("job", job)),
        "InaggIngress.admission.relay_result",
        (("epoch", epoch), ("up", up)),
    )


def _result_admission(job: int, port: int, ip: int, params: tuple[tuple[str, int], ...]) -> TableEntry:
    return TableEntry(
        PARENT,
        (("port", port), ("source", ip), ("job", job)),
        "InaggIngress.admission.accept_result",
        params,
    )


def unicast_group(group: int, members: Mapping[int, Member]) -> MulticastGroup:
    """A copy of each result for each worker. The replication id tells egress the receiver; 0 means "not a copy"."""
    return MulticastGroup(group, tuple((members[rank].port, rank + 1) for rank in sorted(members)))


def _multicast_group(group: int, members: Mapping[int, Member]) -> MulticastGroup:
    """A copy of each result for each port, for all workers behind it."""
    ports = sorted({member.port for member in members.values()})
    return MulticastGroup(group, tuple((port, ALL_RANKS + 1) for port in ports))


def _receiver(job: int, member: Member) -> TableEntry:
    return TableEntry(
        RECEIVER,
        (("job", job), ("rank", member.rank)),
        _DELIVER,
        (("mac", member.mac), ("ip", member.ip), ("udp_port", member.udp_port)),
    )


def flood_group(ports: Iterable[int]) -> MulticastGroup:
    """The group to which other traffic with an unknown or group destination is flooded."""
    return MulticastGroup(FLOOD_GROUP, tuple((port, 0) for port in ports))


def arp_entry(ip: int, mac: int) -> TableEntry:
    """The entry with which the switch answers ARP requests for the aggregator."""
    return TableEntry(ARP_RESPONDER, (("ip", ip),), "InaggIngress.arp_responder.answer", (("mac", mac),))


def aggregator_entries(ip: int, mac: int) -> tuple[TableEntry, ...]:
    """Entries with which the switch answers ARP and pings for the aggregator and drops packets with its source."""
    return (
        arp_entry(ip, mac),
        TableEntry(PING_RESPONDER, (("ip", ip),), "InaggIngress.ping_responder.answer_ping", (("mac", mac),)),
        TableEntry(SOURCE_MAC, (("mac", mac),), f"{_GUARD}.mac_of_aggregator", ()),
        TableEntry(SOURCE_IP, (("ip", ip),), f"{_GUARD}.ip_of_aggregator", ()),
    )


def binding_entries(bindings: Iterable[Binding]) -> tuple[TableEntry, ...]:
    """Entries of static bindings (docs/protocol.md, 5.4).

    A host may have several IPv4 addresses, a port several hosts.
    """
    entries: dict[TableEntry, None] = {}
    for binding in bindings:
        mac, at = (("mac", binding.mac),), (("port", binding.port),)
        for entry in (
            TableEntry(STATION, mac, "InaggIngress.l2.to_port", at),
            TableEntry(SOURCE_MAC, mac, f"{_GUARD}.mac_of_port", at),
            TableEntry(SOURCE_IP, (("ip", binding.ip),), f"{_GUARD}.ip_of_host", (*at, *mac)),
            *(() if binding.shared else (TableEntry(BOUND_PORT, at, f"{_GUARD}.refuse_stranger", ()),)),
        ):
            entries[entry] = None
    return tuple(entries)


def linked_port_entry(port: int) -> TableEntry:
    """The entry for a port with a link to another switch: beacons that come to it go to the controller."""
    return TableEntry(LINKED_PORT, (("port", port),), "InaggIngress.beacons.to_controller", ())


def queue_entry(port: int, packets: int) -> TableEntry:
    """The entry that marks packets of the protocol that meet more packets in a port's queue (docs/protocol.md, 6.2)."""
    return TableEntry(
        QUEUE, (("port", port),), "InaggEgress.mark_congestion.mark_beyond", (("packets", packets),)
    )


def loss_entry(port: int, direction: str, aggregation: bool, probability: float) -> TableEntry:
    """The entry for loss of one traffic class on a port (docs/protocol.md, 8). direction: "ingress" or "egress"."""
    table, action = LOSS_TABLES[direction]
    threshold = min(math.floor(probability * 2**32), _HIGHEST_THRESHOLD)
    return TableEntry(
        table, (("port", port), ("aggregation", int(aggregation))), action, (("threshold", threshold),)
    )
