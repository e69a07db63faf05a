# SPDX-License-Identifier: Apache-2.0
"""The entries of a complete job in each switch of its tree (docs/protocol.md, 5.5 and 5.7)."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from inagg_contract.aggregation import MOST_HOMES
from inagg_contract.constants import INAGG_PORT
from inagg_controller.fabric.topology import Place, Topology
from inagg_controller.fabric.tree import TreeSwitch
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.limits import Limits
from inagg_controller.jobs.servers import Seat, ServerShare
from inagg_controller.switch.entries import (
    JobEntries,
    Member,
    MulticastGroup,
    Parent,
    SharedServer,
    Sharing,
    job_entries,
    unicast_group,
)

# 2^32 divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4). It is odd, so jobs with successive
# numbers get different places.
_SPREAD = 2654435769


def entries_of(job: Job, topology: Topology, limits: Limits) -> dict[str, JobEntries]:
    """All entries of a job's placement, by switch, in the order of installation."""
    return {switch.name: _entries(job, switch, topology, limits) for switch in job.placement.tree.switches}


def unicast_groups_of(job: Job, topology: Topology) -> dict[str, MulticastGroup]:
    """The groups that send a job's results to each member's own address, by switch."""
    return {
        switch.name: unicast_group(_group(job), _members(job, switch, topology))
        for switch in job.placement.tree.switches
    }


def _entries(job: Job, switch: TreeSwitch, topology: Topology, limits: Limits) -> JobEntries:
    node, placement = topology.by_name[switch.name], job.placement
    return job_entries(
        job=job.id,
        epoch=placement.epoch,
        first_chunk=placement.first_chunk,
        slot_base=0 if placement.servers is not None else placement.leases[switch.name].base,
        slots=job.slots,
        sharing=None
        if placement.servers is None
        else _sharing(job, placement.servers, switch, topology, limits),
        group=_group(job),
        members=_members(job, switch, topology),
        results_ip=placement.results_ip,
        parents=[_parent(job, switch, above, topology) for above in switch.above],
        own=(node.mac, node.ip),
    )


def _sharing(job: Job, share: ServerShare, switch: TreeSwitch, topology: Topology, limits: Limits) -> Sharing:
    routes = [(seat, _route(job, seat, topology)) for seat in share.seats]
    homes = job.placement.homes
    return Sharing(
        base=limits.leasable,
        size=limits.shared_slots,
        offset=(_SPREAD * job.id * job.slots - job.placement.first_chunk) % limits.shared_slots,
        bits=_bits(job, switch),
        servers=tuple(
            SharedServer(
                ip=seat.ip, mac=_mac(job, seat, topology), udp_port=seat.udp_port, port=route[switch.name]
            )
            for seat, route in routes
            if switch.name in route
        ),
        homes=homes,
        home_ports=_home_ports(job, switch, homes),
        priority=job.placement.priority,
        expiry_us=limits.shared_expiry_us,
    )


def _home_ports(job: Job, switch: TreeSwitch, homes: Collection[int]) -> dict[int, int]:
    """The ports of ranks at home that have no other rank behind their port, by rank.

    None of many: each makes another set of ports that results go to, and the copy costs a link little.
    """
    if len(homes) > MOST_HOMES:
        return {}
    ports = {rank: _worker(job, rank, rank).port for rank in switch.ranks}
    behind = Counter(ports.values())
    return {rank: port for rank, port in ports.items() if rank in homes and behind[port] == 1}


def _mac(job: Job, seat: Seat, topology: Topology) -> int:
    if seat.rank is None:
        mac = topology.host_at[seat.ip].mac
        assert mac is not None
        return mac
    member = job.members[seat.rank]
    assert isinstance(member, Member)
    return member.mac


def _route(job: Job, seat: Seat, topology: Topology) -> dict[str, int]:
    """The route from the root to a server: switch -> the port that leads there."""
    tree = job.placement.tree
    if seat.rank is None:
        place = topology.host_at[seat.ip].place
    else:
        member = job.members[seat.rank]
        assert isinstance(member, Member)
        place = Place(tree.leaf_of[seat.rank].name, member.port)
    ports = dict([place])
    below = tree.by_name[place.switch]
    while below.above:
        (above,) = below.above
        ports[above] = tree.links[above, below.name].end_at(above).port
        below = tree.by_name[above]
    return ports


def _bits(job: Job, switch: TreeSwitch) -> dict[int, int]:
    """The bits of the ranks below each member of a switch, by the member's number."""
    bits = {number: 1 << rank for number, rank in enumerate(switch.ranks)}
    for name in switch.below:
        bits[switch.number_of(name)] = sum(_bits(job, job.placement.tree.by_name[name]).values())
    return bits


def _members(job: Job, switch: TreeSwitch, topology: Topology) -> dict[int, Member]:
    """The members that a switch sums for, by number."""
    workers = [_worker(job, rank, number) for number, rank in enumerate(switch.ranks)]
    switches = [
        Member(
            rank=switch.number_of(name),
            ip=topology.by_name[name].ip,
            mac=topology.by_name[name].mac,
            udp_port=INAGG_PORT,
            port=job.placement.tree.links[switch.name, name].end_at(switch.name).port,
        )
        for name in switch.below
    ]
    return {member.rank: member for member in [*workers, *switches]}


def _worker(job: Job, rank: int, number: int) -> Member:
    """A worker as its switch knows it, by number."""
    member = job.members[rank]
    assert isinstance(member, Member)
    return replace(member, rank=number)


def _group(job: Job) -> int:
    assert job.placement.group is not None
    return job.placement.group


def _parent(job: Job, switch: TreeSwitch, above: str, topology: Topology) -> Parent:
    node, tree = topology.by_name[above], job.placement.tree
    return Parent(
        ip=node.ip,
        mac=node.mac,
        port=tree.links[above, switch.name].end_at(switch.name).port,
        rank=tree.by_name[above].number_of(switch.name),
    )
