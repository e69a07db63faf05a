# SPDX-License-Identifier: Apache-2.0
"""What sums for a job, as its ranks and servers see it: to whom packets go, and whose they are."""

from dataclasses import dataclass
from typing import Any

from inagg._core import JobShape
from inagg_contract.addresses import format_ip, format_mac
from inagg_contract.aggregation import LEASED, SERVER, Summing
from inagg_contract.constants import INAGG_PORT
from inagg_contract.sizes import way_of
from inagg_controller.fabric.topology import SwitchNode, Topology
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.servers import Seat
from inagg_simulator import reference
from inagg_simulator.p4_switch import Station
from tests.conformance.examples import WORDS

ANY_MAC = "02:00:00:00:00:00"


@dataclass(frozen=True)
class Way:
    """The way of one rank, or of a server (rank 0's). servers: by index. homes: the ranks that send to the servers in
    their processes past the switch. aggregator: the rank's switch; relay: the switch that sends to the servers; None:
    there is none. member: the rank's number at its switch."""

    epoch: int
    shape: JobShape
    slots: int
    rank: int
    aggregation: Summing
    servers: tuple[Seat, ...]
    homes: tuple[int, ...]
    roots: int
    member: int
    aggregator: Station | None
    relay: Station | None
    title: str

    def engine(self) -> dict[str, Any]:
        """The arguments of the rank's engine."""
        return {
            "rank": self.rank,
            "member": self.member,
            "ways": self.roots if self.aggregation == LEASED else len(self.servers),
            "ways_apart": self.aggregation == SERVER,
            "home": self.homes.index(self.rank) if self.rank in self.homes else None,
        }

    @property
    def kind(self) -> str:
        """For the counts of what was seen."""
        if not self.servers:
            return "the switch" if self.relay is None and self.roots == 1 else "two roots"
        return "shared slots" if self.aggregation != SERVER else "servers"

    def destination(self, datagram: bytes) -> Station:
        """To whom the rank sends a packet."""
        if self.servers:
            seat = self.servers[way_of(reference.decode(datagram).chunk, self.slots, len(self.servers))]
            if self.aggregation == SERVER or seat.rank == self.rank in self.homes:
                return Station(ANY_MAC, format_ip(seat.ip), seat.udp_port)
        assert self.aggregator is not None
        return self.aggregator


def shape_of(job: Job) -> JobShape:
    """The job on its present way."""
    return JobShape(
        number=job.id,
        epoch=job.placement.epoch,
        first_chunk=job.placement.first_chunk,
        slots=job.slots,
        words=WORDS,
        workers=job.workers,
    )


def way_of_rank(job: Job, rank: int, topology: Topology) -> Way | None:
    """What sums for a rank; None: not known yet."""
    placement = job.placement
    share, tree = placement.servers, placement.tree
    if not job.uses(placement) or (share is not None and not share.seats):
        return None
    on_switches = bool(tree.switches)
    return Way(
        epoch=placement.epoch,
        shape=shape_of(job),
        slots=job.slots,
        rank=rank,
        aggregation=placement.aggregation,
        servers=() if share is None else share.seats,
        homes=placement.homes,
        roots=tree.roots,
        member=tree.number_of(rank) if on_switches else rank,
        aggregator=_station(topology.by_name[tree.leaf_of[rank].name]) if on_switches else None,
        relay=_station(topology.by_name[tree.switches[0].name]) if on_switches and share else None,
        title=placement.title,
    )


def _station(node: SwitchNode) -> Station:
    return Station(format_mac(node.mac), format_ip(node.ip), INAGG_PORT)
