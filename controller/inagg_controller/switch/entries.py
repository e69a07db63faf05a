# SPDX-License-Identifier: Apache-2.0
"""The entries that the controller writes into the switch, as values named as in the P4 sources.

Addresses are integers, as in the tables.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inagg_contract.addresses import multicast_mac
from inagg_contract.constants import ALL_RANKS, FLOOD_GROUP, INAGG_PORT

ADMISSION = "InaggIngress.admission.admission"
RECEIVER = "InaggEgress.delivery.receiver"
_DELIVER = "InaggEgress.delivery.deliver"
ARP_RESPONDER = "InaggIngress.arp_responder.arp_responder"
PING_RESPONDER = "InaggIngress.ping_responder.ping_responder"
_GUARD = "InaggIngress.source_guard"
SOURCE_MAC, SOURCE_IP, BOUND_PORT = (f"{_GUARD}.{name}" for name in ("source_mac", "source_ip", "bound_port"))
STATION = "InaggIngress.l2.station"
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
    """A worker's address. ip, mac: as integers. port: the switch port of its host."""

    rank: int
    ip: int
    mac: int
    udp_port: int
    port: int


@dataclass(frozen=True, slots=True)
class Binding:
    """Binds a host's addresses to a switch port: no other port may use them. ip, mac: as integers."""

    ip: int
    mac: int
    port: int


@dataclass(frozen=True, slots=True)
class JobEntries:
    """All entries of one job.

    Receivers and the group are installed before admissions, so that the first admitted packet's result can be
    delivered. Removal is in reverse, so that no sum completes that cannot be delivered.
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
    slot_base: int,
    slots: int,
    group: int,
    members: Mapping[int, Member],
    results_ip: int | None = None,
) -> JobEntries:
    """The entries of a complete job (docs/protocol.md, 5.1 and 5.3).

    members: by rank, all of them. results_ip: the multicast address of the job's results; None: each worker's own.
    """
    ranks = sorted(members)
    everyone = (1 << len(ranks)) - 1
    receivers = [_receiver(job, members[rank]) for rank in ranks]
    if results_ip is not None:
        to_all = (("mac", multicast_mac(results_ip)), ("ip", results_ip), ("udp_port", INAGG_PORT))
        receivers.append(TableEntry(RECEIVER, (("job", job), ("rank", ALL_RANKS)), _DELIVER, to_all))
    return JobEntries(
        job=job,
        receivers=tuple(receivers),
        group=unicast_group(group, members) if results_ip is None else _multicast_group(group, members),
        admissions=tuple(
            TableEntry(
                ADMISSION,
                (("port", member.port), ("source", member.ip), ("job", job), ("rank", member.rank)),
                "InaggIngress.admission.admit",
                (
                    ("member", 1 << member.rank),
                    ("all", everyone),
                    ("slot_base", slot_base),
                    ("slot_mask", 2 * slots - 1),
                    ("epoch", epoch),
                    ("result_group", group),
                    ("parents", 0),
                ),
            )
            for member in (members[rank] for rank in ranks)
        ),
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
            TableEntry(BOUND_PORT, at, f"{_GUARD}.refuse_stranger", ()),
        ):
            entries[entry] = None
    return tuple(entries)


def loss_entry(port: int, direction: str, aggregation: bool, probability: float) -> TableEntry:
    """The entry for loss of one traffic class on a port (docs/protocol.md, 8). direction: "ingress" or "egress"."""
    table, action = LOSS_TABLES[direction]
    threshold = min(math.floor(probability * 2**32), _HIGHEST_THRESHOLD)
    return TableEntry(
        table, (("port", port), ("aggregation", int(aggregation))), action, (("threshold", threshold),)
    )
