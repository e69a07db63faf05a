# SPDX-License-Identifier: Apache-2.0
"""Drives the job table: passes it the time, carries out its effects on the switches, wakes requests that wait.

Everything here runs in one asyncio loop, so the job table needs no lock. Each `Connection` has its switch's thread.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address
from typing import TypeVar

from inagg_contract.addresses import Address, format_ip, parse_ip, parse_source
from inagg_contract.constants import INAGG_PORT, MEMBERS_BYTES
from inagg_contract.documents import Aggregation, NewJob
from inagg_contract.sizes import data_mtu
from inagg_controller.connection import Connection
from inagg_controller.errors import (
    ConfigurationError,
    ConflictError,
    ForeignAddressError,
    InvalidRequestError,
    NotOfferedError,
    RequestError,
    SwitchError,
    SwitchRefusedError,
    SwitchTakenError,
    SwitchUnreachableError,
    UnavailableError,
)
from inagg_controller.fabric.links import Change, Links
from inagg_controller.fabric.topology import Place, SwitchNode, Topology
from inagg_controller.jobs.calls import Report
from inagg_controller.jobs.job import Effect, Install, Job, Registered, Regroup
from inagg_controller.jobs.servers import INTERVAL_S, JobKey, Server, Summed, Worker
from inagg_controller.jobs.table import SWITCH_LOST, SWITCH_TAKEN, JobTable
from inagg_controller.managed import ManagedSwitch
from inagg_controller.switch.client import Count, Switch
from inagg_controller.switch.entries import (
    Entity,
    Member,
    aggregator_entries,
    binding_entries,
    flood_group,
    linked_port_entry,
    queue_entry,
)

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

# Where the topology comes from.
_SOURCE = "the controller's --host options or topology file"

# The ways to sum, in the order in which "auto" tries them, with the words before the reason why one of them is refused.
_WAYS: Mapping[Aggregation, str] = {"leased": "", "shared": "on shared slots: ", "server": "on servers: "}

_TICK_S = 0.1
_REMOVAL_S = 1.0
_BEACON_S = 0.5


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


@dataclass(frozen=True, slots=True)
class JobCounts:
    """What switches have counted of a job.

    admitted: rank -> contributions that its switch has admitted. displaced: by switch and whether the sum had expired
    (else it was evicted), how often another contribution took a shared slot of the job; without shared slots empty.
    """

    admitted: dict[int, Count] = field(default_factory=dict)
    displaced: dict[tuple[str, bool], int] = field(default_factory=dict)


class Service:
    """The running controller. All methods must be called in the loop that start() ran in.

    switches: by name, all of the topology. on_crash: called when a defect has ended one of its tasks; the controller
    should then end too.
    """

    def __init__(
        self,
        jobs: JobTable,
        switches: Mapping[str, Switch],
        network: Network,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_crash: Callable[[], None] = lambda: None,
    ) -> None:
        self.jobs = jobs
        self.network = network
        self.topology = network.topology
        self.switches = {
            node.name: self._managed(node, switches[node.name]) for node in self.topology.switches
        }
        self.links = Links(self.topology, clock(), interval_s=_BEACON_S, timeout_s=network.link_timeout_s)
        self._clock = clock
        self._on_crash = on_crash
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._seen_version = jobs.version
        self._work = asyncio.Event()
        self._stopping = False
        self._attended: set[asyncio.Timeout] = set()
        self._last_counts: dict[int, JobCounts] = {}

    def _managed(self, node: SwitchNode, switch: Switch) -> ManagedSwitch:
        connection = Connection(
            node.name,
            switch,
            partial(self._write_base_entries, node, switch),
            on_connected=partial(self._switch_connected, node.name),
            on_lost=partial(self._switch_lost, node.name),
            on_packet=lambda frame: self.links.hear(node.name, frame, self._clock()),
        )
        return ManagedSwitch(node, switch, connection)

    async def start(self, wait_s: float = 0.0) -> None:
        """Connect, then run until stop(). Waits up to wait_s for switches that are not reachable.

        Raises SwitchError, and ConfigurationError for a link that is not as the topology says.
        """
        connections = [managed.connection for managed in self.switches.values()]
        await asyncio.gather(*(connection.open(wait_s, self._clock) for connection in connections))
        await self._find_links()
        keepers = (connection.keep_connected for connection in connections)
        for body in (self._tick_on, self._carry_out_effects, self._watch_links, *keepers):
            task = asyncio.create_task(body(), name=body.__name__)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Stop. The switch's entries stay until the next start pushes the pipeline."""
        self.stop_waiting()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(managed.connection.close() for managed in self.switches.values()))

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Call on_crash if a task has ended by itself: a controller without one of its tasks must end."""
        if not task.cancelled():
            _log.critical("%s has failed", task.get_name(), exc_info=task.exception())
            self._on_crash()

    def stop_waiting(self) -> None:
        """Answer all waiting requests with the current state, and later ones without waiting."""
        self._stopping = True
        self._changed.set()
        for until in self._attended:
            until.reschedule(asyncio.get_running_loop().time())

    async def create(self, new: NewJob, creator: str | None = None) -> Job:
        """Create the job that a client asks for; with "auto" in the first of the three ways that has room for it.

        creator: the host that asks, None for the operator. Waits briefly for what is about to become free. Raises
        InvalidRequestError, UnavailableError; with "auto" UnavailableError has the reasons of all three ways, and is
        NotOfferedError if none of them can change.
        """
        if new.aggregation != "auto":
            return await self._create(new.aggregation, new, creator)
        reasons: dict[str, str] = {}
        later = False
        for way, where in _WAYS.items():
            try:
                job = await self._create(way, new, creator)
            except RequestError as refused:
                if way == "leased" and not isinstance(refused, UnavailableError):
                    raise
                later = later or (
                    isinstance(refused, UnavailableError) and not isinstance(refused, NotOfferedError)
                )
                reasons.setdefault(str(refused), f"{where}{refused}")
            else:
                if reasons:
                    _log.info("%s: on %s, because %s", job.title, _place(job), "; ".join(reasons.values()))
                return job
        raise (UnavailableError if later else NotOfferedError)("; ".join(reasons.values()))

    async def _create(self, way: Aggregation, new: NewJob, creator: str | None) -> Job:
        """See JobTable.create, create_shared and create_on_servers."""
        at = None if way == "server" else self._switches_of(new)
        colocated = new.servers == "colocated"
        await self._wait_while(lambda: self._frees_room(way, new), _REMOVAL_S)
        asked = (new.workers, new.slots, new.name, self._clock(), creator)
        if way == "leased":
            job = self.jobs.create(*asked, at, job_class=new.job_class)
        elif way == "shared":
            job = self.jobs.create_shared(
                *asked, at, colocated=colocated, priority=new.priority, job_class=new.job_class
            )
        else:
            job = self.jobs.create_on_servers(*asked, colocated=colocated, job_class=new.job_class)
        _log.info(
            "%s: class %s, %d workers, %d of %d slots, epoch %d, on %s",
            job.title,
            job.job_class,
            job.workers,
            job.slots,
            new.slots,
            job.epoch,
            _place(job),
        )
        self._publish()
        return job

    def _frees_room(self, way: Aggregation, new: NewJob) -> bool:
        """Whether what a job needs is about to become free."""
        if self.jobs.frees_place(new.job_class):
            return True
        if way == "leased":
            return self.jobs.frees_slots
        return new.servers == "registered" and self.jobs.frees_memory

    def _switches_of(self, new: NewJob) -> list[str] | None:
        """The switch of each rank's host; None if there is at most one switch."""
        if new.hosts is not None and len(new.hosts) != new.workers:
            raise InvalidRequestError(f"hosts has {len(new.hosts)} addresses for {new.workers} workers")
        if len(self.topology.switches) <= 1:
            return None
        if new.hosts is None:
            raise InvalidRequestError(
                "hosts is missing: this controller has several switches, so it must know where the workers are"
            )
        return [self._place_of_host(parse_ip(ip)).switch for ip in new.hosts]

    def _place_of_host(self, ip: int) -> Place:
        host = self.topology.host_at.get(ip)
        if host is None:
            raise InvalidRequestError(f"the topology file names no host with the address {format_ip(ip)}")
        return host.place

    def register(self, number: int, member: Member, switch: str) -> Job:
        """See JobTable.register. switch: at which the worker is.

        Raises InvalidRequestError also for a MAC address of another host, ConflictError for another switch than that of
        the host that the job was created for.
        """
        self._check_mac(member)
        if member.server_udp_port is not None:
            self._check_address(member.ip, member.server_udp_port, "server_udp_port")
        leaf = self.jobs.job(number).tree.leaf_of.get(member.rank)
        if leaf is not None and leaf.name != switch:
            raise ConflictError(
                f"rank {member.rank} is at switch {switch}, but job {number} was created for a worker at {leaf.name}"
            )
        return self._register(number, member)

    def register_on_servers(self, number: int, worker: Worker) -> Job:
        """See JobTable.register, for a job on servers alone. Raises InvalidRequestError also for a bad address."""
        self._check_address(worker.ip, worker.udp_port)
        if worker.server_udp_port is not None:
            self._check_address(worker.ip, worker.server_udp_port, "server_udp_port")
        return self._register(number, worker)

    def _register(self, number: int, member: Registered) -> Job:
        job = self.jobs.register(number, member, self._clock())
        _log.info(
            "%s: %s registered, %d of %d", job.title, job.titles([member.rank]), len(job.members), job.workers
        )
        self._publish()
        return job

    def serve(self, number: int, rank: int) -> Job:
        """See JobTable.serve."""
        job = self.jobs.serve(number, rank, self._clock())
        self._publish()
        return job

    def register_server(self, name: str, ip: int, udp_port: int, memory: int) -> Server:
        """See JobTable.register_server. Raises InvalidRequestError for a bad address."""
        self._check_address(ip, udp_port)
        with self._changes():
            server = self.jobs.register_server(name, ip, udp_port, memory, self._clock())
        _log.info("server %s registered, at %s:%d, %d bytes", name, format_ip(ip), udp_port, memory)
        return server

    async def server_heartbeat(
        self,
        name: str,
        instance: int,
        serving: Iterable[JobKey],
        refused: Mapping[JobKey, str],
        counted: Mapping[JobKey, Summed],
        unknown: int,
    ) -> list[Job]:
        """See JobTable.server_heartbeat; the jobs that the server is to serve.

        Waits until they differ from those that it serves, at most one heartbeat interval.
        """
        with self._changes():
            self.jobs.server_heartbeat(name, instance, self._clock(), serving, refused, counted, unknown)
        server = self.jobs.servers[name]

        def satisfied() -> bool:
            return {job.key for job in self.jobs.orders(name, instance)} == server.serving

        await self._wait_while(satisfied, INTERVAL_S)
        return self.jobs.orders(name, instance)

    def stop_server(self, name: str, instance: int) -> None:
        """See JobTable.stop_server."""
        with self._changes():
            self.jobs.stop_server(name, instance, self._clock())

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
            if source == IPv4Address(ip) or ip in self.network.addresses.get(source, ()):
                return
        address, host = format_ip(ip), self.topology.host_at.get(ip)
        owner = "" if host is None else f", which {_SOURCE} place at {host.place},"
        raise ForeignAddressError(
            f"{address}{owner} is not known to be an address of the host that asks, {asker}. Register it with a "
            f"request that comes from {address}; or start the controller with --host-address {asker}={address} if both "
            f"are of one host, or with --proxy {asker} if that is a reverse proxy"
        )

    def _check_address(self, ip: int, udp_port: int, what: str = "udp_port") -> None:
        """Refuse addresses at which a switch takes packets for its own."""
        if any(switch.ip == ip for switch in self.topology.switches):
            raise InvalidRequestError("ip is the aggregator's own")
        if udp_port == INAGG_PORT:
            raise InvalidRequestError(f"{what} {udp_port} is reserved for the aggregator")

    def place_of(self, ip: int, udp_port: int, port: int | None) -> Place:
        """Where a worker is, from its request and from the topology. Raises InvalidRequestError."""
        self._check_address(ip, udp_port)
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

    def _check_mac(self, member: Member) -> None:
        hosts = [host for host in self.topology.hosts if host.mac is not None]
        bound = {host.mac for host in hosts if host.ip == member.ip}
        if any(switch.mac == member.mac for switch in self.topology.switches):
            raise InvalidRequestError("mac is the aggregator's own")
        if bound and member.mac not in bound:
            raise InvalidRequestError(f"mac is not the one that {_SOURCE} name for this ip")
        if not bound and any(host.mac == member.mac for host in hosts):
            raise InvalidRequestError(f"mac is the one that {_SOURCE} name for another host")

    def check_mtu(self, job: Job, mtu: int | None) -> None:
        """Check that a DATA packet fits the MTU of a worker's path; None: unknown. Raises InvalidRequestError."""
        # What goes from a switch to a server, perhaps the worker's own, says whose contributions it has.
        needed = data_mtu(self.network.words) + (MEMBERS_BYTES if job.aggregation == "shared" else 0)
        if mtu is None or mtu >= needed:
            return
        whose = "switch" if job.servers is None else "job"
        fewer = (
            "run the P4 program compiled with fewer WORDS"
            if self.topology.switches
            else "start the controller with fewer --words"
        )
        raise InvalidRequestError(
            f"mtu is {mtu}, but a DATA packet of this {whose} needs {needed} bytes (WORDS = {self.network.words}):"
            f" give every link on the way a larger MTU, or {fewer}"
        )

    def unicast(self, number: int) -> Job:
        """See JobTable.unicast."""
        job = self.jobs.unicast(number)
        if self.jobs.version != self._seen_version:
            _log.warning("%s: multicast does not reach all workers; results are sent to each", job.title)
            self._publish()
        return job

    def heartbeat(self, number: int, rank: int, report: Report | None) -> Job:
        """See JobTable.heartbeat."""
        job = self.jobs.heartbeat(number, rank, self._clock(), report)
        self._publish()
        return job

    async def attend(
        self, number: int, rank: int, beats: AsyncIterable[object], *, steady: bool = True
    ) -> Job:
        """Watch a rank until `beats` end, which shows that its process has ended, or until stop_waiting().

        steady: as in JobTable.attend.
        """
        member = self.jobs.attend(number, rank, self._clock(), steady=steady)
        job = self.jobs.job(number)
        try:
            async with asyncio.timeout(0 if self._stopping else None) as until:
                self._attended.add(until)
                async for _ in beats:
                    if not self.jobs.hear(number, member, self._clock()):
                        break
        except TimeoutError:
            return job
        finally:
            self._attended.discard(until)
        self.jobs.vanish(number, member, self._clock())
        return job

    def leave(self, number: int, rank: int, error: str | None) -> Job:
        """See JobTable.leave."""
        before = self.jobs.version
        who = self.jobs.job(number).titles([rank])
        job = self.jobs.leave(number, rank, self._clock(), error)
        if self.jobs.version != before:
            _log.info("%s: %s left%s", job.title, who, "" if error is None else f": {error}")
        self._publish()
        return job

    def end(self, number: int) -> Job:
        """See JobTable.end."""
        job = self.jobs.end(number, self._clock())
        self._publish()
        return job

    async def wait_joined(self, number: int, timeout_s: float) -> Job:
        """Wait until the job is not joining, at most timeout_s, and return it. Raises UnknownJobError."""
        job = self.jobs.job(number)
        await self._wait_while(lambda: job.state == "joining", timeout_s)
        return job

    async def wait_registered(self, number: int, timeout_s: float) -> Job:
        """The same until all ranks have registered, too."""
        job = self.jobs.job(number)
        await self._wait_while(lambda: job.state == "joining" and not job.complete, timeout_s)
        return job

    async def _wait_while(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait while a condition of the job table holds, at most timeout_s, and not while the service stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while condition() and not self._stopping:
                    await self._changed.wait()

    async def job_counts(self, job: Job) -> JobCounts | None:
        """What the switches have counted of a job, for an ended job until its end; None if unknown."""
        if not job.tree.switches:
            return None
        if job.state != "running":
            return self._last_counts.get(job.id)
        return await self._read_job_counts(job)

    async def _read_job_counts(self, job: Job) -> JobCounts:
        """The counts of `job_counts`, at the switches that are connected."""
        leaves = [leaf for leaf in job.tree.switches if leaf.ranks]
        counts = await self._of_connected(ManagedSwitch.read_admitted, [leaf.name for leaf in leaves])
        admitted = {
            rank: counts[leaf.name][job.id, member]
            for leaf in leaves
            for member, rank in enumerate(leaf.ranks)
            if (job.id, member) in counts.get(leaf.name, {})
        }
        displaced = {
            (name, expired): count.packets
            for name, found in (await self.displaced(job)).items()
            for (number, expired), count in found.items()
            if number == job.id
        }
        return JobCounts(admitted, displaced)

    async def counters(
        self, failed: dict[str, str] | None = None
    ) -> Mapping[str, Mapping[str, Mapping[int, Count]]]:
        """The indexed counters of the connected switches without zeros: switch -> name -> index -> count.

        failed: receives the errors of switches that are connected and could not be read; they are not in the result.
        Raises UnavailableError if there are switches and none is connected.
        """
        if self.switches and not any(managed.connected for managed in self.switches.values()):
            raise UnavailableError(
                "; ".join(
                    f"switch {name}: {managed.connection.error}" for name, managed in self.switches.items()
                )
            )
        return await self._of_connected(ManagedSwitch.read_counters, failed=failed)

    async def admitted(self) -> Mapping[str, Mapping[tuple[int, int], Count]]:
        """Contributions that the connected switches have admitted: switch -> (job, member number) -> count."""
        return await self._of_connected(ManagedSwitch.read_admitted)

    async def displaced(self, job: Job | None = None) -> Mapping[str, Mapping[tuple[int, bool], Count]]:
        """Contributions that took shared slots from jobs: switch -> (job, whether its sum had expired) -> count.

        job: only at its switches, if it has shared slots.
        """
        names = list(self.switches)
        if job is not None:
            names = list(job.tree.by_name) if job.aggregation == "shared" else []
        return await self._of_connected(ManagedSwitch.read_displaced, names)

    async def _of_connected(
        self,
        read: Callable[[ManagedSwitch], _T],
        names: Iterable[str] | None = None,
        failed: dict[str, str] | None = None,
    ) -> dict[str, _T]:
        """What `read` returns at switches, read at the same time, without those that are not connected or fail.

        names: of the switches; None: all. failed: see `counters`. A failure is logged, too.
        """
        found: dict[str, _T] = {}

        async def read_at(name: str) -> None:
            managed = self.switches[name]
            if managed.connected:
                try:
                    found[name] = await managed.read(read)
                except SwitchError as error:
                    _log.warning("switch %s: its counters could not be read: %s", name, error)
                    if failed is not None:
                        failed[name] = str(error)

        names = list(self.switches if names is None else names)
        await asyncio.gather(*map(read_at, names))
        return {name: found[name] for name in names if name in found}

    def heartbeat_ages(self, job: Job) -> dict[int, float]:
        """Rank -> seconds since its last heartbeat, for ranks that have not left."""
        now = self._clock()
        return {rank: max(0.0, now - seen) for rank, seen in job.last_seen.items() if rank not in job.left}

    def switch(self, name: str | None) -> ManagedSwitch:
        """A switch by its name; None: the only one. Raises InvalidRequestError, UnavailableError."""
        if not self.switches:
            raise UnavailableError("this controller has no switch")
        if name is None and len(self.switches) == 1:
            return next(iter(self.switches.values()))
        if name is None or name not in self.switches:
            raise InvalidRequestError(f"switch is {name}; the switches are {', '.join(self.switches)}")
        return self.switches[name]

    def _publish(self) -> None:
        for job in self.jobs.take_ended():
            if job.state == "failed":
                _log.warning("%s failed: %s", job.title, job.reason)
            else:
                _log.info("%s %s", job.title, job.state)
        if self.jobs.effects:
            self._work.set()
        if self.jobs.version != self._seen_version:
            self._seen_version = self.jobs.version
            if not self._stopping:
                self._changed.set()
                self._changed = asyncio.Event()

    @contextmanager
    def _changes(self) -> Iterator[None]:
        """Log which servers end here, and publish it."""
        servers = dict(self.jobs.servers)
        yield
        for name, server in servers.items():
            if self.jobs.servers.get(name) is not server:
                _log.warning("server %s, instance %d, is gone", name, server.instance)
        self._publish()

    async def _tick_on(self) -> None:
        while True:
            with self._changes():
                self.jobs.tick(self._clock())
            for forgotten in self._last_counts.keys() - self.jobs.jobs.keys():
                del self._last_counts[forgotten]
            await asyncio.sleep(_TICK_S)

    async def _carry_out_effects(self) -> None:
        """Carry out effects: those of a job one after another, those of different jobs at the same time.

        So a switch that does not answer holds up its own jobs only.
        """
        busy: set[int] = set()

        async def carry_out(effect: Effect) -> None:
            await self._carry_out(effect)
            busy.remove(effect.job)
            self._work.set()

        async with asyncio.TaskGroup() as group:
            while True:
                await self._work.wait()
                self._work.clear()
                for effect in list(self.jobs.effects):
                    if effect.job not in busy:
                        busy.add(effect.job)
                        self.jobs.effects.remove(effect)
                        group.create_task(carry_out(effect))

    async def _carry_out(self, effect: Effect) -> None:
        error = None
        try:
            await self._perform(effect)
        except SwitchRefusedError as refusal:
            error = str(refusal)
            _log.error("job %d: %s", effect.job, error)
        except SwitchUnreachableError:  # the job table knows, and has made this effect void
            return
        self.jobs.done(effect, self._clock(), error)
        if isinstance(effect, Install) and error is None:
            _log.info("job %d: entries installed", effect.job)
        self._publish()

    async def _perform(self, effect: Effect) -> None:
        """Carry out an effect, one switch after another. A removal goes on at the switches after one that refuses it.

        Raises SwitchRefusedError of the first switch that refuses, and SwitchUnreachableError also when another switch
        of the job is lost meanwhile: the effect is void then.
        """
        if isinstance(effect, Install):
            for name, entries in effect.entries.items():
                for stage in entries.stages:
                    await self._write(effect, name, self.switches[name].switch.insert, stage)
        elif isinstance(effect, Regroup):
            for name, group in effect.groups.items():
                await self._write(effect, name, self.switches[name].switch.modify, (group,))
        else:
            job = self.jobs.jobs.get(effect.job)
            if job is not None:
                # A removal that is repeated no longer finds the counts of the switches where it succeeded.
                last, now = (
                    self._last_counts.setdefault(job.id, JobCounts()),
                    await self._read_job_counts(job),
                )
                last.admitted.update(now.admitted)
                last.displaced.update(now.displaced)
            refusals = []
            for name, entries in reversed([*effect.entries.items()]):
                try:
                    for stage in reversed(entries.stages):
                        await self._write(effect, name, self.switches[name].switch.remove, stage)
                except SwitchRefusedError as refusal:
                    refusals.append(refusal)
            if refusals:
                raise refusals[0]

    async def _write(
        self, effect: Effect, name: str, write: Callable[[Sequence[Entity]], None], entities: Sequence[Entity]
    ) -> None:
        job = self.jobs.jobs.get(effect.job)
        if job is None or job.generation != effect.generation:
            raise SwitchUnreachableError(f"job {effect.job} has lost a switch")
        await self.switches[name].connection.call(partial(write, entities))

    async def _find_links(self) -> None:
        """Send beacons until it is known which links are there. Raises ConfigurationError for a wrong cable."""
        while "unknown" in self.links.states.values():
            self._look_at_links()
            await asyncio.sleep(_TICK_S)
        wrong = self.links.wrong_cables()
        if wrong:
            raise ConfigurationError("; ".join(wrong))

    async def _watch_links(self) -> None:
        while True:
            self._look_at_links()
            await asyncio.sleep(_TICK_S)

    def _look_at_links(self) -> None:
        now = self._clock()
        for name, frames in self.links.due(now).items():
            self.switches[name].switch.send(frames)
        for change in self.links.tick(now):
            self._link_changed(change, now)

    def _link_changed(self, change: Change, now: float) -> None:
        if change.state == "up":
            _log.info("link %s is up", change.link)
            self.jobs.link_up(change.link)
        else:
            names = [end.switch for end in change.link.ends if not self.switches[end.switch].connected]
            reason = f"switch {names[0]} is not connected" if names else change.reason
            _log.error("link %s is down: %s", change.link, reason)
            self.jobs.link_down(change.link, now, reason)
        self._publish()

    def _switch_connected(self, name: str) -> None:
        self.jobs.switch_connected(name)
        self._publish()

    def _switch_lost(self, name: str, error: SwitchUnreachableError) -> None:
        taken = isinstance(error, SwitchTakenError)
        self.jobs.switch_lost(name, self._clock(), SWITCH_TAKEN if taken else SWITCH_LOST)
        self._publish()

    def _write_base_entries(self, node: SwitchNode, switch: Switch) -> None:
        """Write the entries that a switch needs before any job."""
        switch.insert(aggregator_entries(node.ip, node.mac))
        switch.insert(binding_entries(self.topology.bindings(node.name)))
        switch.insert([flood_group(self.topology.flooded(node.name))])
        linked = [place.port for place in self.topology.link_at if place.switch == node.name]
        switch.insert([linked_port_entry(port) for port in linked])
        if (packets := self.network.mark_queue) is not None:
            switch.insert([queue_entry(port, packets) for port in node.ports])
        switch.insert(self.switches[node.name].losses.entries)


def _place(job: Job) -> str:
    """Where a job is, for the log."""
    switches, servers = ", ".join(job.tree.by_name), job.servers
    if servers is None:
        return switches
    shared = f"shared slots of {switches} and " if switches else ""
    return f"{shared}{servers.count} {'registered' if servers.registered else 'colocated'} servers"
