# SPDX-License-Identifier: Apache-2.0
"""Restores jobs and servers after the controller has been started again. It decides and does no I/O.

What a running job had is taken to be in its switches still; whoever connects to them finds out. A job that was
changing its way begins that again, and a joining one is placed again. Time that a state may last begins anew.
"""

from inagg_contract.documents import ENDED_STATES
from inagg_controller.fabric.ordinary import OrdinaryTree
from inagg_controller.jobs.calls import Comparison
from inagg_controller.jobs.epochs import Epochs
from inagg_controller.jobs.installation import entries_of
from inagg_controller.jobs.job import Job, Registered
from inagg_controller.jobs.leases import Lease
from inagg_controller.jobs.placement import Placement, State
from inagg_controller.jobs.planning import Supplies
from inagg_controller.jobs.record import (
    JobRecord,
    PlacementRecord,
    Saved,
    ShareRecord,
    read_job,
    read_member,
    read_server,
)
from inagg_controller.jobs.servers import Server, Servers, ServerShare, lease
from inagg_controller.jobs.states import JobStates

RESTARTED = "the controller was started again"
_CHANGED = "with another configuration"
# After a power cut the file may lack the last moments (`StateFile`). So many epochs may have been drawn meanwhile.
_LEAP = 1024


def restore(states: JobStates, supplies: Supplies, saved: Saved, now: float) -> None:
    """Restore jobs and servers in a new table. Raises RecordError."""
    numbers = saved.numbers
    states.epochs = _epochs(saved, states.epochs)
    ordinary = OrdinaryTree.named(supplies.topology, saved.ordinary)
    if ordinary is not None and saved.ordinary:
        supplies.resources.ordinary = ordinary
    states.numbers.next = numbers.get("job", states.numbers.next)
    states.groups.next = numbers.get("group", states.groups.next)
    supplies.servers.next_instance = numbers.get("instance", supplies.servers.next_instance)
    for known in map(read_server, saved.servers.values()):
        supplies.servers.by_name[known.name] = Server(
            name=known.name,
            ip=known.ip,
            udp_port=known.udp_port,
            memory=known.memory,
            instance=known.instance,
            last_seen=now,
        )
    members: dict[int, dict[int, Registered]] = {}
    for (number, rank), member in saved.members.items():
        members.setdefault(number, {})[rank] = read_member(member)
    for record in map(read_job, saved.jobs.values()):
        _restore_job(states, supplies, record, members.get(record.id, {}), now)
    states.changed.update(states.jobs)  # also those that stay as they are may have lost servers


def _epochs(saved: Saved, fresh: Epochs) -> Epochs:
    """The epochs that are left. fresh: those of a controller that has kept none.

    A state without a key is of a version that counted epochs up: `epoch` is the one that would have come next.
    """
    above = saved.numbers.get("epoch", 1) - 1
    if not saved.epoch_key:
        return Epochs(fresh.key, fresh.count, above)
    return Epochs(saved.epoch_key, saved.numbers.get("epochs_drawn", 0) + _LEAP, above)


def numbers_of(states: JobStates, servers: Servers) -> dict[str, int]:
    """The next number of each kind, and how many epochs have been drawn, for `restore`."""
    return {
        "epoch": states.epochs.above + 1,
        "epochs_drawn": states.epochs.count,
        "job": states.numbers.next,
        "group": states.groups.next,
        "instance": servers.next_instance,
    }


def _restore_job(
    states: JobStates, supplies: Supplies, record: JobRecord, members: dict[int, Registered], now: float
) -> None:
    ended = record.state in ENDED_STATES
    placement = _placement(record, record.placement, supplies.servers)
    job = Job(
        id=record.id,
        name=record.name,
        workers=record.workers,
        slots=record.slots,
        created_at=now,
        owner=record.owner,
        placements=[placement],
        comparison=Comparison(record.workers),
        on_path_loss=record.on_path_loss,
        changes=record.changes,
        first=record.first,
        state=record.state if record.why_changing is None else "running",
        reason=record.reason,
        ended_at=now if ended else None,
        members=members,
        left=set(record.left),
        lost=dict(record.lost),
        secret=record.secret,
        key=record.key,
        wanted=1,
    )
    states.jobs[job.id] = job
    states.numbers.claim(job.id)
    job.liveness.begin(job.members, now)
    job.liveness.unsteady.update(job.members)  # a busy program may take a while to attend again
    if ended:
        return
    if record.why_changing is not None:  # what it had is of no more use
        states.lose_way(job, record.why_changing, now)
        return
    if not _claim(states, supplies, job, record.placement):
        states.fail(job, f"{RESTARTED} {_CHANGED}", now)
        return
    placement.state = State.PLANNED
    try:
        entries = entries_of(job, supplies.topology, supplies.limits) if job.complete else {}
    except (LookupError, AssertionError):  # where hosts are, and what they are bound to, is another
        states.lose_way(job, f"{RESTARTED} {_CHANGED}", now)
        return
    if job.state == "joining":
        states.place_if_complete(job)
    else:
        placement.entries, placement.state = entries, State.INSTALLED


def _placement(record: JobRecord, had: PlacementRecord, servers: Servers) -> Placement:
    """A placement that holds nothing yet."""
    return Placement(
        job=record.id,
        epoch=had.epoch,
        first_chunk=had.first_chunk,
        slots=record.slots,
        owner=record.owner,
        tree=had.tree,
        leases=had.leases,
        group=had.group,
        results_ip=had.results_ip,
        servers=None if had.servers is None else _share(record, had.servers, servers),
        priority=had.priority,
        state=State.GONE,
    )


def _share(record: JobRecord, had: ShareRecord, servers: Servers) -> ServerShare:
    there = [servers.by_name.get(name) for name in had.registered]
    return ServerShare(
        slots=record.slots,
        count=had.count,
        registered=tuple(server for server in there if server is not None),
        memory=had.memory,
        seats=had.seats,
        serving=set(had.serving),
        beside=dict(had.beside),
    )


def _claim(states: JobStates, supplies: Supplies, job: Job, had: PlacementRecord) -> bool:
    """Have a job hold again what it held. Returns whether there still is all of it; else the job holds nothing."""
    placement, topology = job.placement, supplies.topology
    share, pools = placement.servers, supplies.resources.pools
    servers = () if had.servers is None else had.servers.registered
    if not (
        placement.tree.by_name.keys() <= topology.by_name.keys()
        and {*placement.tree.links.values()} <= {*topology.links}
        and len(servers) == (0 if share is None else len(share.registered))
    ):
        return False
    claimed: dict[str, Lease] = {}
    for name, leased in placement.leases.items():
        if not pools[name].claim(leased):
            supplies.resources.give_back(claimed)
            return False
        claimed[name] = leased
    if placement.group is not None:
        states.groups.claim(placement.group)
    if share is not None:
        lease(share, placement.key, job.owner)
        for index, server in enumerate(share.registered):
            if index in share.serving:
                server.serving |= {placement.key}
    return True
