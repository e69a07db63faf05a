# SPDX-License-Identifier: Apache-2.0
"""The running controller: requests, switches and time meet at the job table here.

Everything runs in one asyncio loop, so the job table needs no lock. Each `Connection` has its switch's thread.
"""

import asyncio
import logging
import time
from array import array
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from inagg_contract.addresses import format_ip, parse_ip, parse_mac
from inagg_contract.aggregation import (
    AGGREGATIONS,
    AUTO,
    COLOCATED,
    LEASED,
    SERVER,
    SHARED,
    Aggregation,
    uses_switches,
)
from inagg_contract.documents import DEFAULT_JOB_CLASS, NewJob, NewWorker
from inagg_contract.sizes import data_mtu
from inagg_controller.connection import Connection
from inagg_controller.counts import SwitchCounts
from inagg_controller.driver import EffectDriver
from inagg_controller.errors import (
    InvalidRequestError,
    NotOfferedError,
    RequestError,
    SwitchTakenError,
    SwitchUnreachableError,
    UnavailableError,
)
from inagg_controller.fabric.links import Links
from inagg_controller.fabric.topology import Place, SwitchNode
from inagg_controller.forwarding import Forwarding
from inagg_controller.jobs.accounts import Owner
from inagg_controller.jobs.calls import Report
from inagg_controller.jobs.change import Change
from inagg_controller.jobs.job import Job, Registered
from inagg_controller.jobs.planning import JobRequest
from inagg_controller.jobs.servers import INTERVAL_S, JobKey, Server, Summed, Worker
from inagg_controller.jobs.switched import SWITCH_LOST, SWITCH_TAKEN
from inagg_controller.jobs.table import JobTable
from inagg_controller.jobs.tenants import Tenant
from inagg_controller.link_watch import LinkWatch
from inagg_controller.managed import ManagedSwitch
from inagg_controller.network import Network
from inagg_controller.publishing import Publisher
from inagg_controller.refusal_watch import RefusalWatch
from inagg_controller.state_file import StateFile
from inagg_controller.switch.client import Switch
from inagg_controller.switch.entries import (
    Entity,
    Member,
    aggregator_entries,
    linked_port_entry,
    queue_entry,
)
from inagg_controller.switch.reconciliation import reconcile

_log = logging.getLogger(__name__)

# Before the reason why a job of this kind is refused, where several kinds have been tried.
_REFUSED: Mapping[Aggregation, str] = {LEASED: "", SHARED: "on shared slots: ", SERVER: "on servers: "}

_TICK_S = 0.1
_REMOVAL_S = 1.0
_BEACON_S = 0.5


class Registration(NamedTuple):
    """A worker that has registered. place: where its host is, in a job on switches."""

    job: Job
    member: Registered
    place: Place | None


class Service:
    """The running controller. All methods must be called in the loop that start() ran in.

    switches: by name, all of the topology. on_crash: called when a defect has ended one of its tasks; the controller
    should then end too. state: keeps the job table, which it may have restored.
    """

    def __init__(
        self,
        jobs: JobTable,
        switches: Mapping[str, Switch],
        network: Network,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_crash: Callable[[], None] = lambda: None,
        state: StateFile | None = None,
    ) -> None:
        self.jobs = jobs
        self.network = network
        self.topology = network.topology
        # Of the switches that have not been connected yet: what restored jobs had there, and which of them lack some.
        self._expected = _restored(jobs)
        self._missing: dict[str, set[int]] = {}
        self.switches = {
            node.name: self._managed(node, switches[node.name]) for node in self.topology.switches
        }
        self.links = Links(self.topology, clock(), interval_s=_BEACON_S, timeout_s=network.link_timeout_s)
        self.counts = SwitchCounts(self.switches)
        self._clock = clock
        self._on_crash = on_crash
        self._publisher = Publisher(jobs, state)
        self._forwarding = Forwarding(jobs, self.switches)
        self.link_watch = LinkWatch(self.links, jobs, self.switches, self._publisher, clock)
        self.refusal_watch = RefusalWatch(
            self.counts, lambda name: self.switches[name].connection.kept, clock
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._attended: set[asyncio.Timeout] = set()

    def _managed(self, node: SwitchNode, switch: Switch) -> ManagedSwitch:
        connection = Connection(
            node.name,
            switch,
            partial(self._prepare, node, switch),
            on_connected=partial(self._switch_connected, node.name),
            on_lost=partial(self._switch_lost, node.name),
            on_packet=lambda frame: self.links.hear(node.name, frame, self._clock()),
            keep=node.name in self._expected,
        )
        return ManagedSwitch(node, switch, connection)

    async def start(self, wait_s: float = 0.0) -> None:
        """Connect, then run until stop(). Waits up to wait_s for switches that are not reachable. With restored jobs it
        goes on without these, and connects to them later.

        Raises SwitchError, and ConfigurationError for a link that is not as the topology says.
        """
        connections = [managed.connection for managed in self.switches.values()]
        await asyncio.gather(*(self._open(connection, wait_s) for connection in connections))
        await self.link_watch.find_links()
        self.jobs.changing.begin_anew(self._clock())
        driver = EffectDriver(self.jobs, self.switches, self.counts, self._publisher, self._clock)
        keepers = (connection.keep_connected for connection in connections)
        watches = (self.link_watch.watch_links, self.refusal_watch.watch_refusals)
        drivers = (driver.carry_out_effects, self._forwarding.follow_tree)
        for body in (self._tick_on, *drivers, *watches, *keepers):
            task = asyncio.create_task(body(), name=body.__name__)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Stop. The switches' entries stay, for the next start."""
        self.stop_waiting()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(managed.connection.close() for managed in self.switches.values()))

    async def _open(self, connection: Connection, wait_s: float) -> None:
        try:
            await connection.open(wait_s, self._clock)
        except SwitchUnreachableError as error:
            if not self.jobs.jobs:
                raise
            _log.warning("switch %s: jobs go on without it: %s", connection.name, error)
            self._expected.pop(connection.name, None)
            connection.open_later(error)
            self._switch_lost(connection.name, error)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Call on_crash if a task has ended by itself: a controller without one of its tasks must end."""
        if not task.cancelled():
            _log.critical("%s has failed", task.get_name(), exc_info=task.exception())
            self._on_crash()

    def stop_waiting(self) -> None:
        """Answer all waiting requests with the current state, and later ones without waiting."""
        self._publisher.stop_waiting()
        for until in self._attended:
            until.reschedule(asyncio.get_running_loop().time())

    async def create(
        self, new: NewJob, creator: str | None = None, tenant: Tenant | None = None, key: str = ""
    ) -> Job:
        """Create the job that a client asks for; with "auto" of the first kind of aggregation that has room for it.

        creator: the host that asks, None for the operator. tenant: whose token it has. A job that names no class is of
        the tenant's first class, or the default one. key: of the request; if it is repeated, it finds the job. Waits
        briefly for what is about to become free. Raises InvalidRequestError, ForbiddenClassError, UnavailableError;
        with "auto" UnavailableError has the reasons of all three kinds, and is NotOfferedError if none of them can
        change.
        """
        if new.hosts is not None and len(new.hosts) != new.workers:
            raise InvalidRequestError(
                f"hosts has {len(new.hosts)} addresses for {new.workers} workers: give one address for each rank"
            )
        if new.job_class is None:
            job_class = DEFAULT_JOB_CLASS if tenant is None else tenant.classes[0]
        else:
            job_class = new.job_class
        owner = Owner(creator, job_class, None if tenant is None else tenant.name)
        if new.aggregation != AUTO:
            return await self._create(new.aggregation, new, owner, key)
        reasons: dict[str, str] = {}
        later = False
        for aggregation in AGGREGATIONS:
            try:
                job = await self._create(aggregation, new, owner, key)
            except RequestError as refused:
                if aggregation == LEASED and not isinstance(refused, UnavailableError):
                    raise
                later = later or (
                    isinstance(refused, UnavailableError) and not isinstance(refused, NotOfferedError)
                )
                reasons.setdefault(str(refused), f"{_REFUSED[aggregation]}{refused}")
            else:
                if reasons:
                    _log.info(
                        "%s: on %s, because %s", job.title, job.placement.title, "; ".join(reasons.values())
                    )
                return job
        raise (UnavailableError if later else NotOfferedError)("; ".join(reasons.values()))

    async def _create(self, aggregation: Aggregation, new: NewJob, owner: Owner, key: str) -> Job:
        """See JobTable.create."""
        request = JobRequest(
            aggregation=aggregation,
            workers=new.workers,
            slots=new.slots,
            name=new.name,
            at=self.network.switches_of(new.hosts) if uses_switches(aggregation) else None,
            colocated=new.servers == COLOCATED,
            priority=new.priority if aggregation == SHARED else 0,
            on_path_loss=tuple(new.on_path_loss),
            key=key,
            **owner._asdict(),
        )
        await self._publisher.wait_while(lambda: self.jobs.frees_room(request), _REMOVAL_S)
        job = self.jobs.create(request, self._clock())
        job.wanted += 1
        if job.wanted > 1:
            _log.info("%s: the request that created it was repeated", job.title)
            return job
        _log.info(
            "%s: %s, %d workers, %d of %d slots, on %s",
            job.title,
            job.owner.title,
            job.workers,
            job.slots,
            new.slots,
            job.placement.title,
        )
        self._publisher.publish()
        return job

    def has_created(self, key: str, tenant: Tenant | None) -> bool:
        """Whether a request with this key has created a job that has not ended."""
        return self.jobs.created_by(key, None if tenant is None else tenant.name) is not None

    def give_up(self, job: Job) -> None:
        """The client has gone that asked for a job. End it, unless the client has asked again."""
        job.wanted -= 1
        if not job.wanted:
            self.end(job.id)

    def register(self, number: int, new: NewWorker, asker: str | None) -> Registration:
        """Register a worker. asker: the address that the request comes from; None: the operator's.

        Raises UnknownJobError, InvalidRequestError, ConflictError, ForeignAddressError.
        """
        ip = parse_ip(new.ip)
        self.network.check_owner(ip, asker)
        job = self.jobs.job(number)
        self.network.check_mtu(job, new.mtu)
        if not uses_switches(job.placement.aggregation):
            member, place = self._worker(new, ip), None
        else:
            member, place = self._member(job, new, ip)
        job = self.jobs.register(number, member, self._clock())
        _log.info(
            "%s: %s registered, %d of %d", job.title, job.titles([member.rank]), len(job.members), job.workers
        )
        self._publisher.publish()
        return Registration(job, member, place)

    def _worker(self, new: NewWorker, ip: int) -> Registered:
        """A worker of a job on servers alone."""
        self.network.check_address(ip, new.udp_port)
        self.network.check_address(ip, new.server_udp_port, "server_udp_port")
        return Worker(
            rank=new.rank,
            ip=ip,
            udp_port=new.udp_port,
            server_udp_port=new.server_udp_port,
            rack=new.rack or self.network.rack_of(ip),
            host=new.host,
        )

    def _member(self, job: Job, new: NewWorker, ip: int) -> tuple[Registered, Place]:
        """A worker of a job on switches, and where it is."""
        if new.mac is None:
            raise InvalidRequestError("mac is missing: the switch needs it in a job on switches")
        place = self.network.place_of(ip, new.udp_port, new.port)
        member = Member(
            rank=new.rank,
            ip=ip,
            mac=parse_mac(new.mac),
            udp_port=new.udp_port,
            port=place.port,
            server_udp_port=new.server_udp_port,
            host=new.host,
        )
        self.network.check_mac(member)
        self.network.check_address(ip, new.server_udp_port, "server_udp_port")
        self.network.check_leaf(job, member.rank, place.switch)
        return member, place

    def way_of(self, job: Job, rank: int) -> Registration | None:
        """What sums for a rank of a job that changes its way; None: not known yet."""
        placement, member = job.placement, job.members[rank]
        if not job.uses(placement) or (placement.servers is not None and not placement.servers.seats):
            return None
        leaf = placement.tree.leaf_of.get(rank)
        if leaf is None or not isinstance(member, Member):
            return Registration(job, member, None)
        return Registration(job, member, Place(leaf.name, member.port))

    def lost_for_s(self, change: Change) -> float:
        """Seconds since a job has lost its way, and not gone on."""
        return self._clock() - change.began_unbroken

    def lose_way(self, number: int, rank: int, epoch: int, reason: str) -> Job:
        """See ChangingJobs.report_loss."""
        job = self.jobs.member_of(number, rank)
        self.jobs.changing.report_loss(job, epoch, f"{job.titles([rank])}: {reason}", self._clock())
        self._publisher.publish()
        return job

    async def freeze(
        self,
        number: int,
        rank: int,
        lost: int,
        chunks: "array[int]",
        server_port: int | None,
        timeout_s: float,
        *,
        beside: Worker | None = None,
        asker: str | None = None,
    ) -> Job:
        """See ChangingJobs.publish. Waits until all ranks have frozen, at most timeout_s. asker: see register().

        Raises InvalidRequestError, ConflictError.
        """
        job = self.jobs.member_of(number, rank)
        if server_port is not None:
            self.network.check_address(job.members[rank].ip, server_port, "server_udp_port")
        change = job.change
        if change is not None and change.lost == lost:
            if beside is not None:
                beside = self._usable(job, change, beside, asker)
            self.jobs.changing.publish(job, rank, lost, chunks, server_port, self._clock(), beside)
            self._publisher.publish()
            await self._publisher.wait_while(lambda: job.change is change and not change.frozen, timeout_s)
        return job

    def _usable(self, job: Job, change: Change, beside: Worker, asker: str | None) -> Worker | None:
        """A rank beside the switches; None if that cannot be, which costs only the ways there."""
        try:
            self.network.check_owner(beside.ip, asker)  # another one's behind a reverse proxy
            self.network.check_address(beside.ip, beside.udp_port)
            self.network.check_address(beside.ip, beside.server_udp_port, "server_udp_port")
            change.check_beside(beside)
        except RequestError as error:
            if beside.rank not in change.published:
                _log.warning("%s: rank %d is not beside the switches: %s", job.title, beside.rank, error)
            return None
        member = job.members[beside.rank]
        return replace(beside, rack=member.rack) if isinstance(member, Worker) else beside

    async def exchange(
        self,
        number: int,
        rank: int,
        lost: int,
        given: Mapping[int, bytes],
        wanted: Set[int],
        timeout_s: float,
    ) -> Job:
        """See ChangingJobs.give. Waits until the rank can give or take results, serve or go on, at most timeout_s."""
        job = self.jobs.member_of(number, rank)
        change = job.change
        most = data_mtu(self.network.words)
        if any(not 0 < len(datagram) <= most for datagram in given.values()):
            raise InvalidRequestError(f"a result of this job has 1 to {most} bytes")
        if change is not None and change.lost == lost and change.frozen:
            self.jobs.changing.give(job, rank, lost, given)
            self._publisher.publish()

            def idle() -> bool:
                if job.change is not change or change.gives(rank) or wanted & change.results.keys():
                    return False
                way = self.way_of(job, rank)
                served = way is None or job.placement.served_by(rank)
                return served and not (self.jobs.changing.ready(job) and not wanted)

            await self._publisher.wait_while(idle, timeout_s)
        return job

    def resume(self, number: int, rank: int, epoch: int) -> Job:
        """See ChangingJobs.resume."""
        job = self.jobs.member_of(number, rank)
        self.jobs.changing.resume(job, rank, epoch, self._clock())
        self._publisher.publish()
        return job

    def serve(self, number: int, rank: int) -> Job:
        """See JobTable.serve."""
        job = self.jobs.serve(number, rank, self._clock())
        self._publisher.publish()
        return job

    def register_server(self, name: str, ip: int, udp_port: int, memory: int) -> Server:
        """See ServedJobs.register. Raises InvalidRequestError for a bad address."""
        self.network.check_address(ip, udp_port)
        with self._publisher.logging_servers():
            server = self.jobs.servers.register(name, ip, udp_port, memory, self._clock())
            self.jobs.changing.advance_all(self._clock())
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
        """See ServedJobs.heartbeat; the jobs that the server is to serve.

        Waits until they differ from those that it serves, at most one heartbeat interval.
        """
        servers = self.jobs.servers
        with self._publisher.logging_servers():
            servers.heartbeat(name, instance, self._clock(), serving, refused, counted, unknown)
        server = servers.by_name[name]

        def satisfied() -> bool:
            return {job.placement.key for job in servers.orders(name, instance)} == server.serving

        await self._publisher.wait_while(satisfied, INTERVAL_S)
        return servers.orders(name, instance)

    def stop_server(self, name: str, instance: int) -> None:
        """See ServedJobs.stop."""
        with self._publisher.logging_servers():
            self.jobs.servers.stop(name, instance, self._clock())

    def unicast(self, number: int) -> Job:
        """See JobTable.unicast."""
        job = self.jobs.unicast(number)
        if self._publisher.unpublished:
            _log.warning("%s: multicast does not reach all workers; results are sent to each", job.title)
            self._publisher.publish()
        return job

    def heartbeat(self, number: int, rank: int, report: Report | None) -> Job:
        """See JobTable.heartbeat."""
        job = self.jobs.heartbeat(number, rank, self._clock(), report)
        self._publisher.publish()
        return job

    async def attend(
        self, number: int, rank: int, beats: AsyncIterable[object], *, steady: bool = True
    ) -> Job:
        """Watch a rank until `beats` end, which shows that its process has ended.

        steady: as in JobTable.attend. Raises UnavailableError when stop_waiting() is called.
        """
        member = self.jobs.attend(number, rank, self._clock(), steady=steady)
        job = self.jobs.job(number)
        try:
            async with asyncio.timeout(0 if self._publisher.stopping else None) as until:
                self._attended.add(until)
                async for _ in beats:
                    if not self.jobs.hear(number, member, self._clock()):
                        break
        except TimeoutError:
            raise UnavailableError("the controller ends; connect again when it has started again") from None
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
        self._publisher.publish()
        return job

    def end(self, number: int) -> Job:
        """See JobTable.end."""
        job = self.jobs.end(number, self._clock())
        self._publisher.publish()
        return job

    async def wait_joined(self, number: int, timeout_s: float) -> Job:
        """Wait until the job is not joining, at most timeout_s, and return it. Raises UnknownJobError."""
        job = self.jobs.job(number)
        await self._publisher.wait_while(lambda: job.state == "joining", timeout_s)
        return job

    async def wait_registered(self, number: int, timeout_s: float) -> Job:
        """The same until all ranks have registered, too."""
        job = self.jobs.job(number)
        await self._publisher.wait_while(lambda: job.state == "joining" and not job.complete, timeout_s)
        return job

    def heartbeat_ages(self, job: Job) -> dict[int, float]:
        """Rank -> seconds since its last heartbeat, for ranks that have not left."""
        ages = job.liveness.ages(self._clock())
        return {rank: age for rank, age in ages.items() if rank not in job.left}

    @property
    def stopping(self) -> bool:
        """Whether stop_waiting() has been called."""
        return self._publisher.stopping

    async def pause(self, seconds: float) -> None:
        """Wait for so long, or until stop_waiting() is called."""
        await self._publisher.wait_while(lambda: True, seconds)

    def seconds_since(self, then: float) -> float:
        """Seconds since a time of the job table's clock."""
        return self._clock() - then

    def switch(self, name: str | None) -> ManagedSwitch:
        """A switch by its name; None: the only one. Raises InvalidRequestError, UnavailableError."""
        if not self.switches:
            raise UnavailableError("this controller has no switch")
        if name is None and len(self.switches) == 1:
            return next(iter(self.switches.values()))
        if name is None or name not in self.switches:
            raise InvalidRequestError(f"switch is {name}; the switches are {', '.join(self.switches)}")
        return self.switches[name]

    async def _tick_on(self) -> None:
        while True:
            with self._publisher.logging_servers():
                self.jobs.tick(self._clock())
            self.counts.forget_all_but(self.jobs.jobs)
            await asyncio.sleep(_TICK_S)

    def _switch_connected(self, name: str) -> None:
        if name in self._expected:
            self._find_expected(name)
        self.jobs.switches.connected(name)
        self.jobs.changing.advance_all(self._clock())
        self._publisher.publish()

    def _switch_lost(self, name: str, error: SwitchUnreachableError) -> None:
        taken = isinstance(error, SwitchTakenError)
        self.jobs.switches.lost(name, self._clock(), SWITCH_TAKEN if taken else SWITCH_LOST)
        self._publisher.publish()

    def _find_expected(self, name: str) -> None:
        """Compare a switch that is connected for the first time with what restored jobs had there."""
        missing = self._missing.pop(name, None)
        expected = self._expected.pop(name)
        if missing is None:
            self.jobs.switches.lost(name, self._clock())
            return
        kept = expected.keys() - missing
        _log.info("switch %s went on: %d of %d jobs have all entries there", name, len(kept), len(expected))
        for number in sorted(missing):
            self.jobs.switches.lose_entries(number, name, self._clock())

    def _prepare(self, node: SwitchNode, switch: Switch, kept: bool) -> None:
        """Write the entries that a switch needs before any job. kept: it has entries already."""
        self._missing.pop(node.name, None)  # of an attempt to connect that has failed
        if kept:
            expected = self._expected.get(node.name, {})
            self._missing[node.name] = reconcile(switch, self._base(node), expected)
        else:
            switch.insert(self._base(node))

    def _base(self, node: SwitchNode) -> list[Entity]:
        """The entries that a switch needs before any job."""
        linked = [place.port for place in self.topology.link_at if place.switch == node.name]
        marked = () if self.network.mark_queue is None else node.ports
        return [
            *aggregator_entries(node.ip, node.mac),
            *self._forwarding.entities(node.name),
            *(linked_port_entry(port) for port in linked),
            *(queue_entry(port, self.network.mark_queue or 0) for port in marked),
            *self.switches[node.name].losses.entries,
        ]


def _restored(jobs: JobTable) -> dict[str, dict[int, list[Entity]]]:
    """What restored jobs had in switches, by switch and job."""
    found: dict[str, dict[int, list[Entity]]] = {}
    for number, by_switch in jobs.switches.installed().items():
        for name, entries in by_switch.items():
            found.setdefault(name, {})[number] = [entity for stage in entries.stages for entity in stage]
    return found
