# SPDX-License-Identifier: Apache-2.0
"""What holds after every step of `Life`. Each function is one invariant."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from inagg_contract.aggregation import SHARED
from inagg_contract.constants import FLOOD_GROUP
from inagg_contract.sizes import server_memory
from inagg_controller.jobs.accounts import Account, Held
from inagg_controller.jobs.job import Job, holding
from inagg_controller.jobs.placement import Placement, State
from inagg_controller.jobs.servers import JobKey
from inagg_controller.jobs.table import JobTable
from tests.controller.entities import Placed, in_stages
from tests.controller.p4info import WORDS


@dataclass
class Process:
    """A server's process. held: the jobs that it serves, and their bytes. answer: to its heartbeat, not yet read."""

    name: str
    instance: int
    memory: int
    held: dict[JobKey, int] = field(default_factory=dict)
    answer: dict[JobKey, int] | None = None
    refused: dict[JobKey, str] = field(default_factory=dict)


class Seen(Protocol):
    """What the invariants see of `Life`."""

    table: JobTable
    entities: set[Placed]
    epochs: list[int]
    moved: set[int]
    endings: dict[int, tuple[str, str | None, dict[int, str]]]
    freed: set[int]
    processes: dict[str, Process]
    instances: list[int]
    forgotten: set[JobKey]

    def holders(self) -> list[Job]: ...


INVARIANTS: list[Callable[[Seen], None]] = []


def _invariant(check: Callable[[Seen], None]) -> Callable[[Seen], None]:
    INVARIANTS.append(check)
    return check


def bytes_in(placement: Placement) -> int:
    """What each server gives to a job."""
    assert placement.servers is not None
    return server_memory(placement.slots, placement.servers.count, WORDS)


def is_held(placement: Placement) -> bool:
    """Whether a server has not said yet that it no longer serves it."""
    return placement.servers is not None and placement.servers.holds(placement.key)


def _accounts(life: Seen) -> list[Account]:
    return [*life.table.classes.values(), *life.table.tenants.by_name.values()]


@_invariant
def no_epoch_repeats(life: Seen) -> None:
    assert len(life.epochs) == len(set(life.epochs))
    assert all(0 < epoch < 2**32 for epoch in life.epochs)


@_invariant
def instances_of_servers_grow(life: Seen) -> None:
    assert life.instances == sorted(set(life.instances))


@_invariant
def an_ended_job_stays_as_it_ended(life: Seen) -> None:
    for number, job in life.table.jobs.items():
        if number in life.endings or job.ended:
            ending = (job.state, job.reason, dict(job.lost))
            assert life.endings.setdefault(number, ending) == ending


@_invariant
def a_job_that_everybody_has_left_does_not_run(life: Seen) -> None:
    assert not any(
        job.state == "running" and len(job.left) == job.workers for job in life.table.jobs.values()
    )


@_invariant
def leases_belong_to_placements_that_hold_them_and_to_nobody_else(life: Seen) -> None:
    placements = holding(life.table.jobs.values())
    for name, pool in life.table.switches.pools.items():
        held = [each.leases[name] for each in placements if name in each.leases]
        assert pool.leases == tuple(sorted(held, key=lambda lease: lease.base))
    for placement in (each for job in life.table.jobs.values() for each in job.placements):
        leased_in = placement.tree.by_name.keys() if placement.servers is None else set()
        assert placement.leases.keys() == leased_in
        assert all(lease.size == 2 * placement.slots for lease in placement.leases.values())


@_invariant
def a_job_has_one_place_unless_it_moves(life: Seen) -> None:
    for job in life.table.jobs.values():
        assert job.holds_resources or job.ended or job.change is not None
        if job.change is not None:
            life.moved.add(job.id)
        *older, placement = job.placements
        assert all(old.state is State.REMOVING or is_held(old) for old in older)
        assert all(old.slots == placement.slots == job.slots for old in older)
        assert not older or job.id in life.moved


@_invariant
def a_job_that_has_lost_its_way_has_no_other_or_one_that_it_uses(life: Seen) -> None:
    for job in life.table.jobs.values():
        assert (job.state == "changing") == (job.change is not None)
        if job.change is not None:
            assert bool(job.change.found_by) == (job.placement.epoch != job.change.lost)
            assert bool(job.change.found_by) == job.uses(job.placement)
            assert len(job.change.resumed) < job.workers
            assert not job.left


@_invariant
def what_is_in_a_switch_belongs_to_a_placement_that_still_holds_its_lease(life: Seen) -> None:
    mine = {
        placed for placement in holding(life.table.jobs.values()) for placed in in_stages(placement.entries)
    }
    assert life.entities <= mine
    assert FLOOD_GROUP not in {job.placement.group for job in life.table.jobs.values()}


@_invariant
def a_running_job_is_complete_and_installed_unless_it_moves(life: Seen) -> None:
    for job in life.table.jobs.values():
        if job.state != "running":
            continue
        assert len(job.members) == job.workers
        *older, placement = job.placements
        if placement.state is State.PLANNED:
            assert older
        elif placement.state is State.INSTALLED or job.id not in life.moved:
            assert placement.entries.keys() == placement.tree.by_name.keys()
            assert set(in_stages(placement.entries)) <= life.entities
        else:
            assert placement.state is State.INSTALLING


@_invariant
def no_two_servers_have_the_same_address(life: Seen) -> None:
    servers = life.table.servers.by_name.values()
    assert len({(server.ip, server.udp_port) for server in servers}) == len(servers)


@_invariant
def memory_is_leased_to_placements_that_hold_it_and_never_exceeds(life: Seen) -> None:
    for server in life.table.servers.by_name.values():
        assert server.free >= 0
        for key, lease in server.leases.items():
            (placement,) = (each for each in life.table.jobs[key.id].placements if each.key == key)
            assert placement.servers is not None
            assert not placement.freed
            assert server in placement.servers.registered
            assert lease.size == bytes_in(placement)


@_invariant
def memory_in_which_a_job_may_still_be_is_not_free(life: Seen) -> None:
    for process in life.processes.values():
        server = life.table.servers.by_name.get(process.name)
        if server is not None and server.instance == process.instance:
            # What was removed when the controller was started again, a server forgets before it takes anything else.
            assert process.held.keys() <= server.leases.keys() | life.forgotten


@_invariant
def an_ended_job_holds_memory_of_living_servers_and_entries_only(life: Seen) -> None:
    living = list(life.table.servers.by_name.values())
    for job in life.table.jobs.values():
        if job.ended and job.placement.servers is not None:
            leasing = [
                server
                for placement in job.placements
                if placement.servers is not None
                for server in placement.servers.registered
                if placement.key in server.leases
            ]
            in_switch = any(placement.entries for placement in job.placements)
            assert job.holds_resources == (in_switch or any(server in living for server in leasing))


@_invariant
def an_active_job_has_all_its_servers(life: Seen) -> None:
    living = list(life.table.servers.by_name.values())
    for job in life.table.jobs.values():
        share = job.placement.servers
        if share is not None and job.uses(job.placement):
            assert all(server in living for server in share.registered)
            assert all(job.placement.key in server.leases for server in share.registered)


@_invariant
def a_job_runs_exactly_while_all_its_servers_serve_it_and_its_entries_are_in(life: Seen) -> None:
    for job in life.table.jobs.values():
        share = job.placement.servers
        if share is None or job.ended or job.change is not None:
            continue
        served = share.serving == set(range(share.count))
        in_switch = job.placement.state is State.INSTALLED
        assert served or job.state != "running"
        assert not (served and in_switch) or job.state == "running"
        assert bool(share.seats) == (len(job.members) == job.workers)
        for index, server in enumerate(share.registered):
            assert (index in share.serving) == (job.placement.key in server.serving and job.complete)


@_invariant
def no_account_has_more_than_its_quotas(life: Seen) -> None:
    for account in _accounts(life):
        held = life.table.held_by(account)
        assert account.jobs is None or held.jobs <= account.jobs
        assert account.slots is None or max(held.slots.values()) <= account.slots
        assert account.memory is None or held.memory <= account.memory
        for placement in (job.placement for job in life.table.jobs.values() if account.owns(job.owner)):
            assert placement.aggregation in account.aggregation
            if account.priority is not None and placement.aggregation == SHARED:
                assert placement.priority <= account.priority


@_invariant
def a_job_is_of_a_class_that_its_tenant_has(life: Seen) -> None:
    for job in life.table.jobs.values():
        assert job.owner.job_class in life.table.classes
        tenant = life.table.tenants.by_name.get(job.owner.tenant or "")
        assert tenant is None or job.owner.job_class in tenant.classes


@_invariant
def an_account_holds_what_pools_and_servers_lease_to_its_jobs(life: Seen) -> None:
    for account in _accounts(life):
        jobs = [job for job in life.holders() if account.owns(job.owner)]
        memory = sum(
            lease.size
            for server in life.table.servers.by_name.values()
            for key, lease in server.leases.items()
            if account.owns(life.table.jobs[key.id].owner)
        )
        leases = [lease for placement in holding(jobs) for lease in placement.leases.items()]
        slots = {
            switch: sum(lease.size for at, lease in leases if at == switch) // 2
            for switch in life.table.switches.pools
        }
        assert life.table.held_by(account) == Held(len(jobs), slots, memory)


@_invariant
def no_host_has_more_than_its_share(life: Seen) -> None:
    placements = [each for each in holding(life.table.jobs.values()) if each.owner.creator is not None]
    for creator in {each.owner.creator for each in placements}:
        for name, pool in life.table.switches.pools.items():
            held = [
                each.leases[name].size
                for each in placements
                if each.owner.creator == creator and name in each.leases
            ]
            assert sum(held) <= life.table.limits.host_share * pool.size


@_invariant
def a_job_frees_its_part_once_after_it_has_ended(life: Seen) -> None:
    for job in life.table.jobs.values():
        assert not (job.placement.epoch in life.freed and job.holds_resources)
        if not job.holds_resources:
            life.freed.add(job.placement.epoch)


@_invariant
def the_number_of_jobs_on_servers_is_bounded(life: Seen) -> None:
    jobs = [job for job in life.holders() if job.placement.servers is not None]
    assert len(jobs) <= life.table.limits.max_server_jobs
