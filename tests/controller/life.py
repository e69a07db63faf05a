# SPDX-License-Identifier: Apache-2.0
"""A state machine of hypothesis: the life of jobs of every kind, on switches and servers that come and go.

`life_invariants` has what must hold after every step.
"""

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inagg_contract.aggregation import LEASED, SERVER, SHARED, Aggregation
from inagg_contract.documents import DEFAULT_JOB_CLASS
from inagg_controller.errors import (
    ConflictError,
    ForbiddenClassError,
    ForbiddenError,
    RequestError,
    UnavailableError,
)
from inagg_controller.fabric.topology import Topology
from inagg_controller.jobs.accounts import Account, Owner
from inagg_controller.jobs.calls import Report
from inagg_controller.jobs.effects import Effect, Install, Regroup
from inagg_controller.jobs.job import Job, Registered
from inagg_controller.jobs.planning import JobRequest
from inagg_controller.jobs.record import Saved, record_of, record_of_member
from inagg_controller.jobs.servers import JobKey, Worker
from inagg_controller.jobs.table import JobTable
from inagg_controller.jobs.tenants import Tenant, Tenants
from tests.controller.entities import Placed, entities_of, in_stages, name_of
from tests.controller.life_invariants import INVARIANTS, Process, bytes_in
from tests.controller.serving import STAR
from tests.controller.tables import POLICY, member, move, new_table

INDEX = st.integers(0, 3)
RANK = st.integers(0, 4)
NAMES = st.sampled_from(["a", "b", "c"])
CREATORS = [None, "10.0.0.1", "10.0.0.2"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What lives. servers: with servers and shared slots, and jobs of every kind. limits: of `Limits`. classes: there
    are several, and several hosts that create jobs. tenants: create jobs too; the first one may come and go.

    The ranks are at the first two switches of the topology in turns; with one, all are there.
    """

    topology: Topology = STAR
    servers: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)
    classes: bool = False
    tenants: Sequence[Tenant] = ()


def _with_servers(machine: "Life") -> bool:
    return machine.setting.servers


class Life(RuleBasedStateMachine):
    """Requests, time, effects and failures in any order. Switches carry out the effects; servers get the answers to
    their heartbeats late or never.

    entities: in the switches. epochs: of all placements. moved: the jobs that have had two. endings: how jobs ended.
    freed: the epochs of those that have freed all. saved: what outlasts the controller. forgotten: what the last one
    had of servers and the present one has not. processes: of servers, by name. instances: of all of them. creator,
    job_class, tenant, priority, on_path_loss: of the jobs that are created.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setting = setting
        self.now = 0.0
        self.names = list(setting.topology.by_name)
        self.tenants = Tenants(setting.tenants)
        self.table = self.new_table()
        for name in self.names:
            self.table.switches.connected(name)
        self.saved = Saved()
        self.forgotten: set[JobKey] = set()
        self.entities: set[Placed] = set()
        self.epochs: list[int] = []
        self.moved: set[int] = set()
        self.endings: dict[int, tuple[str, str | None, dict[int, str]]] = {}
        self.freed: set[int] = set()
        self.processes: dict[str, Process] = {}
        self.instances: list[int] = []
        self.creator: str | None = None
        self.job_class, self.priority = DEFAULT_JOB_CLASS, 0
        self.tenant: str | None = None
        self.on_path_loss: tuple[str, ...] = ("same", "other", "servers", "fail")

    def new_table(self) -> JobTable:
        """Of a controller that has just started."""
        return new_table(
            topology=self.setting.topology,
            max_members=10,
            max_ended=3,
            max_server_jobs=6,
            now=self.now,
            connected=False,
            policy=replace(POLICY, return_after_s=0.5),
            tenants=self.tenants,
            **self.setting.limits,
        )

    # Requests about jobs

    @rule(workers=st.integers(1, 4), slots=st.sampled_from([2, 4, 8, 16, 32, 64]))
    def create_leased(self, workers: int, slots: int) -> None:
        self.try_to_create(LEASED, workers, slots, colocated=True)

    @rule(workers=st.integers(1, 3))
    def create_complete_leased(self, workers: int) -> None:
        self.try_to_create(LEASED, workers, 2, colocated=True)
        self.register_all(0)

    @precondition(_with_servers)
    @rule(workers=st.integers(1, 4), slots=st.sampled_from([2, 4, 32]), colocated=st.booleans())
    def create_shared(self, workers: int, slots: int, colocated: bool) -> None:
        self.try_to_create(SHARED, workers, slots, colocated)

    @precondition(_with_servers)
    @rule(workers=st.integers(1, 2), colocated=st.booleans())
    def create_complete_shared(self, workers: int, colocated: bool) -> None:
        self.try_to_create(SHARED, workers, 4, colocated)
        self.register_all(0)

    @precondition(_with_servers)
    @rule(workers=st.integers(1, 4), slots=st.sampled_from([2, 4, 8]), colocated=st.booleans())
    def create_on_servers(self, workers: int, slots: int, colocated: bool) -> None:
        self.try_to_create(SERVER, workers, slots, colocated)

    @precondition(_with_servers)
    @rule(workers=st.integers(1, 2), colocated=st.booleans())
    def create_complete_on_servers(self, workers: int, colocated: bool) -> None:
        self.try_to_create(SERVER, workers, 4, colocated)
        self.register_all(0)

    def try_to_create(self, aggregation: Aggregation, workers: int, slots: int, colocated: bool) -> str:
        """Create a job. Returns why it is refused; a refused one must change nothing."""
        leaves = self.names[:2]
        request = JobRequest(
            aggregation=aggregation,
            workers=workers,
            slots=slots,
            creator=self.creator,
            at=[leaves[rank % len(leaves)] for rank in range(workers)],
            colocated=colocated,
            priority=self.priority if aggregation == SHARED else 0,
            job_class=self.job_class,
            tenant=self.tenant,
            on_path_loss=self.on_path_loss,
        )
        before = self.picture()
        try:
            job = self.table.create(request, self.now)
        except (UnavailableError, ForbiddenError, ForbiddenClassError) as error:
            assert self.picture() == before
            return str(error)
        assert self.permitted
        self.epochs.append(job.placement.epoch)
        assert job.placement.aggregation == aggregation
        assert job.slots <= slots
        assert job.slots == 1 << int(math.log2(job.slots))
        share = job.placement.servers
        if share is not None:
            assert 1 <= share.count <= job.slots
            assert aggregation == SERVER or share.count in (1, 2, 4)
            assert bool(share.registered) is not colocated
        return ""

    @precondition(lambda self: self.setting.classes)
    @rule(data=st.data(), priority=st.integers(0, 2), creator=st.sampled_from(CREATORS))
    def ask_as(self, data: st.DataObject, priority: int, creator: str | None) -> None:
        """The next jobs that are created are of a class and perhaps of a tenant, and from a host."""
        self.job_class = data.draw(st.sampled_from(list(self.table.classes)))
        self.tenant = data.draw(st.sampled_from([None, *(tenant.name for tenant in self.setting.tenants)]))
        self.creator, self.priority = creator, priority

    @precondition(lambda self: self.setting.tenants)
    @rule(there=st.booleans())
    def replace_tenants(self, there: bool) -> None:
        """The first tenant goes, or comes back. Its jobs go on."""
        before = self.picture()
        self.tenants.replace(self.setting.tenants[0 if there else 1 :])
        assert self.picture() == before

    @property
    def permitted(self) -> bool:
        """Whether the next job may be of its class."""
        if self.tenant is None:
            return True
        tenant = self.tenants.by_name.get(self.tenant)
        return tenant is not None and self.job_class in tenant.classes

    @precondition(lambda self: self.setting.classes)
    @rule(workers=st.integers(1, 2))
    def create_within_the_number(self, workers: int) -> None:
        """The number of jobs is a reason to refuse a job if and only if its class or its tenant has them all."""
        owner = Owner(self.creator, self.job_class, self.tenant)
        accounts = [self.table.classes[self.job_class], *self.tenants.by_name.values()]
        full = self.permitted and any(
            sum(account.owns(job.owner) for job in self.holders()) == account.jobs
            for account in accounts
            if account.owns(owner)
        )
        refusal = self.try_to_create(SERVER, workers, 2, colocated=True)
        assert ("its quota is jobs=" in refusal) is full

    @rule(index=INDEX)
    def move(self, index: int) -> None:
        """Other slots for a job, perhaps in other switches above."""
        job = self.table.jobs.get(self.pick(index))
        if job is None or job.ended or job.change is not None or job.placement.aggregation != LEASED:
            return
        before = self.picture()
        try:
            move(self.table, job)
        except UnavailableError:
            assert self.picture() == before
            return
        self.moved.add(job.id)
        self.epochs.append(job.placement.epoch)

    @rule(index=INDEX, rank=st.integers(-1, 4), host=st.integers(1, 4))
    def register(self, index: int, rank: int, host: int) -> None:
        number = self.pick(index)
        self.act(self.table.register, number, self.worker(number, rank, host), self.now)

    @rule(index=INDEX)
    def register_all(self, index: int) -> None:
        number = self.pick(index)
        for rank in range(4):
            self.act(self.table.register, number, self.worker(number, rank, rank + 1), self.now)

    def worker(self, number: int, rank: int, host: int) -> Registered:
        """A worker as it registers in a job, from one of the hosts."""
        job = self.table.jobs.get(number)
        if job is None or job.placement.tree.switches:
            return replace(member(rank, host), server_udp_port=5000)
        return Worker(rank=rank, ip=0x0A000000 + host, udp_port=4000, server_udp_port=5000)

    @precondition(_with_servers)
    @rule(index=INDEX, rank=RANK)
    def serve(self, index: int, rank: int) -> None:
        self.act(self.table.serve, self.pick(index), rank, self.now)

    @precondition(_with_servers)
    @rule(index=INDEX)
    def serve_all(self, index: int) -> None:
        for rank in range(4):
            self.act(self.table.serve, self.pick(index), rank, self.now)

    @rule(index=INDEX, rank=RANK)
    def beat(self, index: int, rank: int) -> None:
        self.act(self.table.heartbeat, self.pick(index), rank, self.now)

    @rule(index=INDEX, rank=RANK)
    def attend(self, index: int, rank: int) -> None:
        self.act(self.table.attend, self.pick(index), rank, self.now)

    @rule(index=INDEX, rank=RANK)
    def vanish(self, index: int, rank: int) -> None:
        number = self.pick(index)
        self.act(self.table.vanish, number, member(rank), self.now)  # not a rank of this job for the table
        known = self.table.jobs[number].members.get(rank) if number in self.table.jobs else None
        if known is not None:
            self.table.vanish(number, known, self.now)

    @rule(index=INDEX, rank=RANK, error=st.sampled_from([None, None, "broken"]))
    def leave(self, index: int, rank: int, error: str | None) -> None:
        self.act(self.table.leave, self.pick(index), rank, self.now, error)

    @rule(index=INDEX)
    def leave_all(self, index: int) -> None:
        number = self.pick(index)
        for rank in range(4):
            self.act(self.table.leave, number, rank, self.now)

    # Changes of way

    @rule(
        options=st.sampled_from(
            [(), ("fail",), ("same",), ("other", "servers"), ("servers", "same", "other")]
        )
    )
    def hope_for(self, options: tuple[str, ...]) -> None:
        """The next jobs that are created try these."""
        self.on_path_loss = options

    @rule(index=INDEX, late=st.booleans())
    def report_loss(self, index: int, late: bool) -> None:
        """A rank finds its way dead, or one that the job has left."""
        job = self.table.jobs.get(self.pick(index))
        if job is not None:
            epoch = job.placement.epoch - late
            self.table.changing.report_loss(job, epoch, "it does not answer", self.now)

    @rule(index=INDEX, rank=RANK, done=st.sets(st.integers(0, 1)), able=st.booleans(), beside=st.booleans())
    def freeze(self, index: int, rank: int, done: set[int], able: bool, beside: bool) -> None:
        """A rank publishes its next chunks, one later in the slots `done`."""
        job = self.table.jobs.get(self.pick(index))
        if job is None or rank >= job.workers:
            return
        lost = job.placement.epoch if job.change is None else job.change.lost
        known = {} if job.change is None else job.change.published
        chunks = array("I", (slot + job.slots * (slot in done) for slot in range(job.slots)))
        port = 5000 if able else None
        there = (
            Worker(rank=rank, ip=0x0A000101 + rank, udp_port=6000, server_udp_port=7000) if beside else None
        )
        self.act(self.table.changing.publish, job, rank, lost, known.get(rank, chunks), port, self.now, there)

    @rule(index=INDEX, beside=st.booleans())
    def freeze_all(self, index: int, beside: bool) -> None:
        for rank in range(4):
            self.freeze(index, rank, {rank % 2}, able=True, beside=beside)

    @rule(index=INDEX, rank=RANK)
    def give(self, index: int, rank: int) -> None:
        job = self.table.jobs.get(self.pick(index))
        if job is not None and job.change is not None:
            results = dict.fromkeys(job.change.gives(rank), b"result")
            self.act(self.table.changing.give, job, rank, job.change.lost, results)

    @rule(index=INDEX, rank=RANK, late=st.booleans())
    def resume(self, index: int, rank: int, late: bool) -> None:
        job = self.table.jobs.get(self.pick(index))
        if job is not None and rank < job.workers and self.table.changing.ready(job):
            self.act(self.table.changing.resume, job, rank, job.placement.epoch - late, self.now)

    @rule(workers=st.integers(1, 2))
    def create_running(self, workers: int) -> None:
        if not self.try_to_create(LEASED, workers, 2, colocated=True):
            self.register_all(0)
            while self.table.switches.effects:
                self.carry_out()

    @precondition(lambda self: any(job.active for job in self.table.jobs.values()))
    @rule(data=st.data())
    def change_at_once(self, data: st.DataObject) -> None:
        """A job loses its way, and all ranks freeze, serve and go on, as far as they can."""
        numbers = [*self.table.jobs][::-1]
        active = [index for index, number in enumerate(numbers) if self.table.jobs[number].active]
        self.change_now(data.draw(st.sampled_from(active)), beside=data.draw(st.booleans()))

    def change_now(self, index: int, *, beside: bool) -> None:
        self.report_loss(index, late=False)
        self.go_on(index, beside=beside)

    def go_on(self, index: int, *, beside: bool) -> None:
        """All ranks freeze, serve and go on, as far as they can."""
        self.freeze_all(index, beside=beside)
        self.table.tick(self.now)
        if self.setting.servers:
            self.serve_all(index)
        while self.table.switches.effects:
            self.carry_out()
        for rank in range(4):
            self.resume(index, rank, late=False)

    @precondition(lambda self: any(job.active for job in self.table.jobs.values()))
    @rule(data=st.data(), found=st.sampled_from(["servers", "other"]))
    def change_and_return(self, data: st.DataObject, found: str) -> None:
        """A job goes on on another way, and begins to return once its first one is there."""
        active = [job for job in self.table.jobs.values() if job.state == "running" and not job.left]
        if not active:
            return
        job = data.draw(st.sampled_from(active))
        job.on_path_loss = tuple(dict.fromkeys((found, "servers")))
        index = [*self.table.jobs][::-1].index(job.id)
        self.change_now(index, beside=data.draw(st.booleans()))
        for _ in range(3):
            if job.state == "running":
                self.now += 1.0
                for rank in range(job.workers):
                    self.act(self.table.heartbeat, job.id, rank, self.now, Report(0))
                self.table.tick(self.now)
        if data.draw(st.booleans()):
            self.go_on(index, beside=data.draw(st.booleans()))

    @rule(index=INDEX)
    def unicast(self, index: int) -> None:
        self.act(self.table.unicast, self.pick(index))

    @rule(index=INDEX)
    def end(self, index: int) -> None:
        self.act(self.table.end, self.pick(index), self.now)

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.5, 0.7, 5.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.table.tick(self.now)

    def act(self, method: Callable[..., object], *arguments: object) -> None:
        """Make a request. A refused one must change nothing."""
        before = self.picture()
        try:
            method(*arguments)
        except RequestError:
            assert self.picture() == before

    def pick(self, index: int) -> int:
        """The number of a job, 0 for the newest; sometimes of none."""
        numbers = [*self.table.jobs][::-1]
        return numbers[index] if index < len(numbers) else 9999

    # Switches and links

    @precondition(lambda self: self.table.switches.effects)
    @rule()
    def carry_out(self) -> None:
        effect = self.table.switches.effects.popleft()
        self.perform(effect)
        self.table.switches.done(effect, self.now)

    def perform(self, effect: Effect) -> None:
        entities = entities_of(effect)
        if isinstance(effect, Install):
            assert not {name_of(entity) for entity in entities} & {
                name_of(entity) for entity in self.entities
            }
            self.entities |= set(entities)
        else:
            self.remove(entities)
            self.entities |= set(entities) if isinstance(effect, Regroup) else set()

    def remove(self, entities: Sequence[Placed]) -> None:
        gone = {name_of(entity) for entity in entities}
        self.entities = {entity for entity in self.entities if name_of(entity) not in gone}

    @precondition(lambda self: self.table.switches.effects)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        effect = self.table.switches.effects.popleft()
        entities = entities_of(effect)
        done = data.draw(st.integers(0, len(entities)))
        if isinstance(effect, Install):
            self.entities |= set(entities[:done])
        elif not isinstance(effect, Regroup):
            self.remove(entities[done:])
        self.table.switches.done(effect, self.now, "refused")

    @rule(in_flight=st.booleans(), data=st.data())
    def restart_switch(self, in_flight: bool, data: st.DataObject) -> None:
        """Restart a switch, perhaps while an effect is carried out."""
        name = data.draw(st.sampled_from(self.names))
        effects = self.table.switches.effects
        effect = effects.popleft() if in_flight and effects else None
        concerned = effect is not None and name in dict(entities_of(effect))
        if effect is not None and not concerned:
            self.perform(effect)
        elif isinstance(effect, Install):
            entities = entities_of(effect)
            self.entities |= set(entities[: data.draw(st.integers(0, len(entities)))])
        self.table.switches.lost(name, self.now)
        if effect is not None:
            self.table.switches.done(effect, self.now)
        self.entities = {placed for placed in self.entities if placed[0] != name}
        running = [job for job in self.table.jobs.values() if job.state == "running"]
        assert not any(name in job.placement.tree.by_name for job in running)
        self.table.switches.connected(name)

    @precondition(lambda self: self.setting.topology.links)
    @rule(data=st.data())
    def break_link(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(self.setting.topology.links))
        self.table.switches.link_down(link, self.now, "cut")
        living = [job for job in self.table.jobs.values() if not job.ended]
        assert not any(link in job.placement.tree.links.values() for job in living if job.uses(job.placement))
        self.table.switches.link_up(link)

    # The controller

    @rule(data=st.data())
    def restart_controller(self, data: st.DataObject) -> None:
        """The controller starts again. Some switches have been restarted meanwhile, or have lost entries."""
        self.save()
        before = self.table
        self.table = self.new_table()
        self.table.restore(self.saved, self.now)
        for name in data.draw(st.permutations(self.names)):
            installed = self.table.switches.installed()
            expected = {
                number: set(in_stages({name: entries[name]}))
                for number, entries in installed.items()
                if name in entries
            }
            there = {placed for placed in self.entities if placed[0] == name}
            self.entities -= there
            if expected and not data.draw(st.integers(0, 4)):
                self.table.switches.lost(name, self.now)
            else:
                gone = data.draw(st.sampled_from([set(), *({placed} for placed in sorted(there, key=repr))]))
                there -= gone
                self.entities |= there & set().union(*expected.values())
                for number, entities in expected.items():
                    if not entities <= there:
                        self.table.switches.lose_entries(number, name, self.now)
            self.table.switches.connected(name)
        for server in before.servers.by_name.values():
            known = self.table.servers.by_name[server.name]
            assert (known.instance, known.memory) == (server.instance, server.memory)
            self.forgotten |= server.leases.keys() - known.leases.keys()
        kept = [job for job in before.jobs.values() if job.state in ("joining", "running")]
        assert all(self.table.jobs[job.id].members == job.members for job in kept)
        assert all(self.table.jobs[job.id].secret == job.secret for job in before.jobs.values())

    def save(self) -> None:
        """Keep what a controller keeps."""
        changes = self.table.changes()
        jobs = {**self.saved.jobs, **changes.jobs}
        jobs = {number: record for number, record in jobs.items() if record}
        members = {at: record for at, record in self.saved.members.items() if changes.jobs.get(at[0]) != b""}
        members = {at: record for at, record in {**members, **changes.members}.items() if record}
        self.saved = replace(changes, jobs=jobs, members=members)
        known = self.table.jobs
        assert jobs == {number: record_of(job) for number, job in known.items()}
        assert members == {
            (number, rank): record_of_member(member)
            for number, job in known.items()
            for rank, member in job.members.items()
        }

    # Servers

    @precondition(_with_servers)
    @rule(name=NAMES, memory=st.sampled_from([0, 4432, 8864, 20000]), moved=st.booleans())
    def start_server(self, name: str, memory: int, moved: bool) -> None:
        """A server starts, perhaps again, perhaps at the address of server c."""
        ip = 0x0A000100 + (ord("c") if moved else ord(name))
        known = self.table.servers.by_name.get(name)
        if known is not None and known.ip != ip:
            with pytest.raises(ConflictError):
                self.table.servers.register(name, ip, 18754, memory, self.now)
            return
        server = self.table.servers.register(name, ip, 18754, memory, self.now)
        self.instances.append(server.instance)
        self.processes[name] = Process(name, server.instance, memory)

    @precondition(lambda self: self.processes)
    @rule(name=NAMES)
    def ask(self, name: str) -> None:
        """A server's heartbeat, and the answer's way back begins."""
        process = self.processes.get(name)
        if process is None:
            return
        arguments = name, process.instance, self.now, list(process.held), process.refused
        self.act(self.table.servers.heartbeat, *arguments)
        server = self.table.servers.by_name.get(name)
        if server is None or server.instance != process.instance:
            del self.processes[name]
            return
        process.refused = {}
        orders = [job.placement for job in self.table.servers.orders(name, process.instance)]
        process.answer = {placement.key: bytes_in(placement) for placement in orders}

    @precondition(lambda self: any(process.answer is not None for process in self.processes.values()))
    @rule(name=NAMES, lost=st.booleans(), refuses=st.booleans())
    def obey(self, name: str, lost: bool, refuses: bool) -> None:
        """A server gets the answer, and perhaps cannot install a job; or the answer is lost."""
        process = self.processes.get(name)
        if process is None or process.answer is None:
            return
        orders, process.answer = process.answer, None
        if lost:
            return
        process.held = {key: size for key, size in process.held.items() if key in orders}
        for key, size in orders.items():
            if refuses and key not in process.held:
                process.refused[key] = "broken"
            else:
                process.held[key] = size
        assert sum(process.held.values()) <= process.memory

    @precondition(lambda self: any(process.held for process in self.processes.values()))
    @rule(name=NAMES)
    def drop_a_job(self, name: str) -> None:
        """A server stops serving a job without an order."""
        process = self.processes.get(name)
        if process is not None and process.held:
            process.held.popitem()

    @precondition(lambda self: self.processes)
    @rule(name=NAMES)
    def ask_and_obey_twice(self, name: str) -> None:
        for _ in range(2):
            self.ask(name)
            self.obey(name, lost=False, refuses=False)

    @precondition(lambda self: self.processes)
    @rule(name=NAMES)
    def stop_server(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is not None:
            self.act(self.table.servers.stop, name, process.instance, self.now)
            there = self.table.servers.by_name.values()
            assert all(server.instance != process.instance for server in there)

    @precondition(lambda self: self.processes)
    @rule()
    def let_servers_be_lost(self) -> None:
        for _ in range(10):
            self.now += 0.6
            self.table.tick(self.now)
        assert not self.table.servers.by_name

    # What holds

    def holders(self) -> list[Job]:
        return [job for job in self.table.jobs.values() if job.holds_resources]

    def picture(self) -> object:
        """All that a refused request must not change."""
        table = self.table
        jobs = {
            number: (
                job.state,
                dict(job.members),
                set(job.left),
                dict(job.lost),
                [(placement.entries, placement.state) for placement in job.placements],
            )
            for number, job in table.jobs.items()
        }
        leases = {name: pool.leases for name, pool in table.switches.pools.items()}
        servers = [
            (server.instance, dict(server.leases), server.serving)
            for server in table.servers.by_name.values()
        ]
        return jobs, leases, list(table.switches.effects), servers, table.version

    @invariant()
    def all_invariants_hold(self) -> None:
        self.save()
        for check in INVARIANTS:
            check(self)
        self.table.tick(self.now)
        assert sum(job.ended and not job.holds_resources for job in self.table.jobs.values()) <= 3

    def teardown(self) -> None:
        """Once every job has ended, and switches and servers have heard of it, all is free."""
        for number in list(self.table.jobs):
            self.table.end(number, self.now)
        for name in list(self.processes):
            self.ask_and_obey_twice(name)
        assert all(server.free == server.memory for server in self.table.servers.by_name.values())
        for _ in range(3):
            while self.table.switches.effects:
                self.carry_out()
            self.now += 1.0
            self.table.tick(self.now)
        assert self.entities == set()
        assert all(pool.free == pool.size for pool in self.table.switches.pools.values())
        assert self.table.switches.installed() == {}
        self.now += POLICY.keep_s
        self.table.tick(self.now)
        assert self.table.jobs == {}
        self.creator = None
        for known in self.table.classes.values():
            self.job_class, self.tenant = known.name, None
            self.fill(known)
        for tenant in self.tenants.by_name.values():
            self.job_class, self.tenant = DEFAULT_JOB_CLASS, tenant.name
            self.fill(tenant)

    def fill(self, account: Account) -> None:
        """Create all jobs of a quota, and one too many. End them again."""
        if account.jobs is None:
            return
        for _ in range(account.jobs):
            assert self.try_to_create(SERVER, 1, 2, colocated=True) == ""
        assert f"its quota is jobs={account.jobs}" in self.try_to_create(SERVER, 1, 2, colocated=True)
        for number in list(self.table.jobs):
            self.table.end(number, self.now)
