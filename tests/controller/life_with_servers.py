# SPDX-License-Identifier: Apache-2.0
"""The life of jobs, those on servers and on shared slots too."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from inagg_contract.sizes import server_memory
from inagg_controller.errors import ConflictError, UnavailableError
from inagg_controller.jobs.job import Job, Registered
from inagg_controller.jobs.servers import JobKey, Server, Worker
from tests.controller.life import INDEX, Life
from tests.controller.p4info import WORDS
from tests.controller.shared_tables import HOSTS, SHARED_SLOTS
from tests.controller.tables import member

NAMES = st.sampled_from(["a", "b", "c"])


@dataclass
class Process:
    """A server's process. held: the jobs that it serves, and their bytes. answer: to its heartbeat, not yet read."""

    name: str
    instance: int
    memory: int
    held: dict[JobKey, int] = field(default_factory=dict)
    answer: dict[JobKey, int] | None = None
    refused: dict[JobKey, str] = field(default_factory=dict)


class LifeWithServers(Life):
    """The same with servers, which get the answers to their heartbeats late or never, and with shared slots."""

    topology = HOSTS
    limits: ClassVar[Mapping[str, Any]] = {"shared_slots": SHARED_SLOTS}
    priority = 0

    @initialize()
    def start(self) -> None:
        super().start()
        self.processes: dict[str, Process] = {}
        self.instances: list[int] = []

    @rule(workers=st.integers(1, 4), slots=st.sampled_from([2, 4, 8]), colocated=st.booleans())
    def create_on_servers(self, workers: int, slots: int, colocated: bool) -> None:
        before = self.picture()
        try:
            job = self.table.create_on_servers(
                workers, slots, "", self.now, self.creator, colocated=colocated, job_class=self.job_class
            )
        except UnavailableError:
            assert self.picture() == before
            return
        self.epochs.append(job.epoch)
        assert job.servers is not None
        assert 1 <= job.servers.count <= job.slots <= slots
        assert bool(job.servers.registered) is not colocated

    @rule(workers=st.integers(1, 4), slots=st.sampled_from([2, 4, 32]), colocated=st.booleans())
    def create_shared(self, workers: int, slots: int, colocated: bool) -> None:
        before = self.picture()
        try:
            job = self.table.create_shared(
                workers,
                slots,
                "",
                self.now,
                self.creator,
                colocated=colocated,
                priority=self.priority,
                job_class=self.job_class,
            )
        except UnavailableError:
            assert self.picture() == before
            return
        self.epochs.append(job.epoch)
        assert job.servers is not None
        assert job.servers.count in (1, 2, 4)
        assert job.servers.count <= job.slots <= slots

    @rule(workers=st.integers(1, 2), colocated=st.booleans())
    def create_complete_shared(self, workers: int, colocated: bool) -> None:
        self.create_shared(workers, 4, colocated)
        self.register_all(0)

    @rule(workers=st.integers(1, 2), colocated=st.booleans())
    def create_complete_on_servers(self, workers: int, colocated: bool) -> None:
        self.create_on_servers(workers, 4, colocated)
        self.register_all(0)

    def worker(self, number: int, rank: int, host: int) -> Registered:
        job = self.table.jobs.get(number)
        if job is None or job.tree.switches:
            return replace(member(rank, host), server_udp_port=5000)
        return Worker(rank=rank, ip=0x0A000000 + host, udp_port=4000, server_udp_port=5000)

    @rule(index=INDEX, rank=st.integers(0, 4))
    def serve(self, index: int, rank: int) -> None:
        self.act(self.table.serve, self.pick(index), rank, self.now)

    @rule(index=INDEX)
    def serve_all(self, index: int) -> None:
        for rank in range(4):
            self.act(self.table.serve, self.pick(index), rank, self.now)

    @rule(name=NAMES, memory=st.sampled_from([0, 4432, 8864, 20000]), moved=st.booleans())
    def start_server(self, name: str, memory: int, moved: bool) -> None:
        """A server starts, perhaps again, perhaps at the address of server c."""
        ip = 0x0A000100 + (ord("c") if moved else ord(name))
        known = self.table.servers.get(name)
        if known is not None and known.ip != ip:
            with pytest.raises(ConflictError):
                self.table.register_server(name, ip, 18754, memory, self.now)
            return
        server = self.table.register_server(name, ip, 18754, memory, self.now)
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
        self.act(self.table.server_heartbeat, *arguments)
        server = self.table.servers.get(name)
        if server is None or server.instance != process.instance:
            del self.processes[name]
            return
        process.refused = {}
        orders = self.table.orders(name, process.instance)
        process.answer = {job.key: self.bytes_in(job) for job in orders}

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
            self.act(self.table.stop_server, name, process.instance, self.now)
            assert all(server.instance != process.instance for server in self.table.servers.values())

    @rule()
    def let_servers_be_lost(self) -> None:
        for _ in range(10):
            self.now += 0.6
            self.table.tick(self.now)
        assert not self.table.servers

    @staticmethod
    def bytes_in(job: Job) -> int:
        assert job.servers is not None
        return server_memory(job.slots, job.servers.count, WORDS)

    @invariant()
    def instances_grow(self) -> None:
        assert self.instances == sorted(set(self.instances))

    @invariant()
    def no_two_servers_have_the_same_address(self) -> None:
        servers = self.table.servers.values()
        assert len({(server.ip, server.udp_port) for server in servers}) == len(servers)

    @invariant()
    def memory_is_leased_to_jobs_that_hold_it_and_never_exceeds(self) -> None:
        for server in self.table.servers.values():
            assert server.free >= 0
            for key, lease in server.leases.items():
                job = self.table.jobs[key.id]
                assert (job.key, job.holds_resources) == (key, True)
                assert job.servers is not None
                assert server in job.servers.registered
                assert lease.size == self.bytes_in(job)

    @invariant()
    def memory_in_which_a_job_may_still_be_is_not_free(self) -> None:
        for process in self.processes.values():
            server = self.table.servers.get(process.name)
            if server is not None and server.instance == process.instance:
                assert process.held.keys() <= server.leases.keys()

    @invariant()
    def an_ended_job_holds_memory_of_living_servers_and_entries_only(self) -> None:
        for job in self.table.jobs.values():
            if job.ended and job.servers is not None:
                holding = [server for server in job.servers.registered if job.key in server.leases]
                in_switch = job.entries is not None
                assert job.holds_resources == (in_switch or any(map(self.lives, holding)))

    @invariant()
    def an_active_job_has_all_its_servers(self) -> None:
        for job in self.table.jobs.values():
            if job.servers is not None and not job.ended:
                assert all(self.lives(server) for server in job.servers.registered)
                assert all(job.key in server.leases for server in job.servers.registered)

    @invariant()
    def a_job_runs_exactly_while_all_its_servers_serve_it_and_its_entries_are_in(self) -> None:
        for job in self.table.jobs.values():
            if job.servers is None or job.ended:
                continue
            served = job.servers.serving == set(range(job.servers.count))
            in_switch = not job.tree.switches or job.installed
            assert served or job.state != "running"
            assert not (served and in_switch) or job.state == "running"
            assert bool(job.servers.seats) == (len(job.members) == job.workers)
            for index, server in enumerate(job.servers.registered):
                assert (index in job.servers.serving) == (job.key in server.serving and job.complete)

    @invariant()
    def the_number_of_jobs_on_servers_is_bounded(self) -> None:
        jobs = [job for job in self.table.jobs.values() if job.servers is not None]
        assert sum(job.holds_resources for job in jobs) <= self.table.limits.max_server_jobs

    def lives(self, server: Server) -> bool:
        return self.table.servers.get(server.name) is server

    def teardown(self) -> None:
        """Once every job has ended and every server has heard of it, all memory is free."""
        for number in list(self.table.jobs):
            self.table.end(number, self.now)
        for name in list(self.processes):
            self.ask_and_obey_twice(name)
        for server in self.table.servers.values():
            assert server.free == server.memory
        super().teardown()
