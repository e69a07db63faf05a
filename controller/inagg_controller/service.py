# SPDX-License-Identifier: Apache-2.0
"""Drives the job table: passes it the time, carries out its effects on the switch, wakes requests that wait.

Everything here runs in one asyncio loop, so the job table needs no lock. `link` has the switch's thread.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from inagg_contract.sizes import data_mtu
from inagg_controller.errors import (
    InvalidRequestError,
    SwitchError,
    SwitchRefusedError,
    SwitchTakenError,
    SwitchUnreachableError,
)
from inagg_controller.jobs.calls import Report
from inagg_controller.jobs.job import Effect, Install, Job, Regroup
from inagg_controller.jobs.table import SWITCH_RESTARTED, SWITCH_TAKEN, JobTable
from inagg_controller.link import SwitchLink
from inagg_controller.switch.client import Count, Switch
from inagg_controller.switch.entries import Binding, Member, aggregator_entries, binding_entries, flood_group
from inagg_controller.switch.loss import LossChange, Losses

_log = logging.getLogger(__name__)

_TICK_S = 0.1
_REMOVAL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network that the controller serves, from its options.

    Addresses are integers. ports: the switch's ports. hosts: IPv4 address -> switch port of the hosts given by --host.
    bindings: the hosts whose MAC address is given too. words: 256-byte words in a DATA packet. multicast: the first
    address for results (`JobTable`).
    """

    ports: tuple[int, ...]
    hosts: Mapping[int, int]
    bindings: tuple[Binding, ...] = ()
    aggregator_ip: int
    aggregator_mac: int
    aggregator_udp_port: int
    words: int
    multicast: int | None = None


class Service:
    """The running controller. All methods must be called in the loop that start() ran in.

    on_crash: called when a defect has ended one of its tasks; the controller should then end too.
    """

    def __init__(
        self,
        jobs: JobTable,
        switch: Switch,
        network: Network,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_crash: Callable[[], None] = lambda: None,
    ) -> None:
        self.jobs = jobs
        self.network = network
        self.losses = Losses()
        self.link = SwitchLink(
            switch, self._write_base_entries, on_connected=self._switch_connected, on_lost=self._switch_lost
        )
        self._switch = switch
        self._clock = clock
        self._on_crash = on_crash
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._seen_version = jobs.version
        self._work = asyncio.Event()
        self._stopping = False
        self._attended: set[asyncio.Timeout] = set()
        self._last_counts: dict[int, dict[int, Count]] = {}

    async def start(self, wait_s: float = 0.0) -> None:
        """Connect, then run until stop(). Waits up to wait_s for a switch that is not reachable. Raises SwitchError."""
        await self.link.open(wait_s, self._clock)
        for body in (self._tick_on, self._carry_out_effects, self.link.keep_connected):
            task = asyncio.create_task(body(), name=body.__name__)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Stop. The switch's entries stay until the next start pushes the pipeline."""
        self.stop_waiting()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.link.close()

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

    async def create(self, workers: int, slots: int, name: str, creator: str | None = None) -> Job:
        """See JobTable.create. Waits briefly for slots that are about to become free."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_REMOVAL_S):
                while self.jobs.frees_slots and not self._stopping:
                    await self._changed.wait()
        job = self.jobs.create(workers, slots, name, self._clock(), creator)
        _log.info(
            "job %d: %d workers, %d of %d slots, epoch %d", job.id, workers, job.slots, slots, job.epoch
        )
        self._publish()
        return job

    def register(self, number: int, member: Member) -> Job:
        """See JobTable.register. Raises InvalidRequestError also for a MAC address of another host."""
        self._check_mac(member)
        job = self.jobs.register(number, member, self._clock())
        _log.info("job %d: rank %d registered, %d of %d", number, member.rank, len(job.members), job.workers)
        self._publish()
        return job

    def port_of(self, ip: int, udp_port: int, port: int | None) -> int:
        """The switch port of a worker, from its request or from --host. Raises InvalidRequestError."""
        if ip == self.network.aggregator_ip:
            raise InvalidRequestError("ip is the aggregator's own")
        if udp_port == self.network.aggregator_udp_port:
            raise InvalidRequestError(f"udp_port {udp_port} is reserved for the aggregator")
        known = self.network.hosts.get(ip)
        found = known if port is None else port
        if found is None:
            raise InvalidRequestError("port is missing, and no --host option names the port of this ip")
        if known not in (None, found):
            raise InvalidRequestError(f"port is {found}, but a --host option names {known} for this ip")
        if found not in self.network.ports:
            raise InvalidRequestError(f"port is {found}; the switch's ports are {list(self.network.ports)}")
        return found

    def _check_mac(self, member: Member) -> None:
        network = self.network
        bound = {binding.mac for binding in network.bindings if binding.ip == member.ip}
        if member.mac == network.aggregator_mac:
            raise InvalidRequestError("mac is the aggregator's own")
        if bound and member.mac not in bound:
            raise InvalidRequestError("mac is not the one that a --host option names for this ip")
        if not bound and any(binding.mac == member.mac for binding in network.bindings):
            raise InvalidRequestError("mac is the one that a --host option names for another host")

    def check_mtu(self, mtu: int | None) -> None:
        """Check that a DATA packet fits the MTU of a worker's path; None: unknown. Raises InvalidRequestError."""
        needed = data_mtu(self.network.words)
        if mtu is not None and mtu < needed:
            raise InvalidRequestError(
                f"mtu is {mtu}, but a DATA packet of this switch needs {needed} bytes (WORDS = {self.network.words}):"
                " give every link on the way a larger MTU, or run the P4 program compiled with fewer WORDS"
            )

    def unicast(self, number: int) -> Job:
        """See JobTable.unicast."""
        job = self.jobs.unicast(number)
        if self.jobs.version != self._seen_version:
            _log.warning("job %d: multicast does not reach all workers; results are sent to each", number)
            self._publish()
        return job

    def heartbeat(self, number: int, rank: int, report: Report | None) -> Job:
        """See JobTable.heartbeat."""
        job = self.jobs.heartbeat(number, rank, self._clock(), report)
        if self.jobs.version != self._seen_version:
            _log.warning("job %d %s: %s", number, job.state, job.reason)
            self._publish()
        return job

    async def attend(self, number: int, rank: int, beats: AsyncIterable[object]) -> Job:
        """Watch a rank until `beats` end, which shows that its process has ended, or until stop_waiting()."""
        member = self.jobs.attend(number, rank, self._clock())
        job = self.jobs.job(number)
        try:
            async with asyncio.timeout(0 if self._stopping else None) as until:
                self._attended.add(until)
                async for _ in beats:
                    self.jobs.heartbeat(number, rank, self._clock())
        except TimeoutError:
            return job
        finally:
            self._attended.discard(until)
        self.jobs.vanish(number, member, self._clock())
        return job

    def leave(self, number: int, rank: int, error: str | None) -> Job:
        """See JobTable.leave."""
        job = self.jobs.leave(number, rank, self._clock(), error)
        _log.info("job %d: rank %d left%s", number, rank, "" if error is None else f": {error}")
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
        try:
            async with asyncio.timeout(timeout_s):
                while job.state == "joining" and not self._stopping:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return job

    async def job_counts(self, job: Job) -> Mapping[int, Count] | None:
        """Rank -> contributions that the switch has admitted, for an ended job until its end; None if unknown."""
        if job.state != "running" or self.link.state != "connected":
            return self._last_counts.get(job.id)
        try:
            return _of_job(await self.link.call(self._switch.read_admitted), job.id)
        except SwitchError:
            return None

    async def counters(self) -> Mapping[str, Mapping[int, Count]]:
        """The indexed counters without zeros: name -> port -> count. Raises UnavailableError."""
        return await self.link.request(partial(self._switch.read_counters, self.network.ports))

    async def admitted(self) -> Mapping[tuple[int, int], Count]:
        """(job, rank) -> contributions that the switch has admitted. Raises UnavailableError."""
        return await self.link.request(self._switch.read_admitted)

    def heartbeat_ages(self, job: Job) -> dict[int, float]:
        """Rank -> seconds since its last heartbeat, for ranks that have not left."""
        now = self._clock()
        return {rank: max(0.0, now - seen) for rank, seen in job.last_seen.items() if rank not in job.left}

    async def set_loss(self, port: int, direction: str, traffic: str, probability: float) -> None:
        """Inject loss. Raises InvalidRequestError, UnavailableError; nothing has changed then."""
        if port not in self.network.ports:
            raise InvalidRequestError(f"port is {port}; the switch's ports are {list(self.network.ports)}")
        async with self.link.lock:
            await self._change_loss(self.losses.setting(port, direction, traffic, probability))

    async def clear_loss(self) -> None:
        """Remove all injected loss. Raises UnavailableError."""
        async with self.link.lock:
            await self._change_loss(self.losses.clearing())

    async def _change_loss(self, change: LossChange) -> None:
        await self.link.request(partial(self._write_loss, change))
        self.losses.commit(change)

    def _write_loss(self, change: LossChange) -> None:
        self._switch.remove(change.remove)
        self._switch.modify(change.modify)
        self._switch.insert(change.insert)

    def _publish(self) -> None:
        if self.jobs.effects:
            self._work.set()
        if self.jobs.version != self._seen_version:
            self._seen_version = self.jobs.version
            if not self._stopping:
                self._changed.set()
                self._changed = asyncio.Event()

    async def _tick_on(self) -> None:
        while True:
            before = {job.id: job.state for job in self.jobs.jobs.values()}
            self.jobs.tick(self._clock())
            for number, job in self.jobs.jobs.items():
                if before.get(number) != job.state:
                    _log.warning("job %d %s: %s", number, job.state, job.reason)
            for forgotten in self._last_counts.keys() - self.jobs.jobs.keys():
                del self._last_counts[forgotten]
            self._publish()
            await asyncio.sleep(_TICK_S)

    async def _carry_out_effects(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self.jobs.effects:
                effect = self.jobs.effects.popleft()
                error = None
                try:
                    await self.link.call(partial(self._perform, effect))
                except SwitchRefusedError as refusal:
                    error = str(refusal)
                    _log.error("job %d: %s", effect.job, error)
                except SwitchUnreachableError:
                    break
                self.jobs.done(effect, self._clock(), error)
                if isinstance(effect, Install) and error is None:
                    _log.info("job %d: entries installed", effect.job)
                self._publish()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Install):
            for stage in effect.entries.stages:
                self._switch.insert(stage)
        elif isinstance(effect, Regroup):
            self._switch.modify((effect.group,))
        else:
            self._last_counts[effect.job] = _of_job(self._switch.read_admitted(), effect.job)
            for stage in reversed(effect.entries.stages):
                self._switch.remove(stage)

    def _switch_connected(self) -> None:
        self.jobs.switch_connected()
        self._publish()

    def _switch_lost(self, error: SwitchUnreachableError) -> None:
        taken = isinstance(error, SwitchTakenError)
        self.jobs.switch_lost(self._clock(), SWITCH_TAKEN if taken else SWITCH_RESTARTED)
        self._publish()

    def _write_base_entries(self) -> None:
        """Write the entries that the switch needs before any job."""
        network = self.network
        self._switch.insert(aggregator_entries(network.aggregator_ip, network.aggregator_mac))
        self._switch.insert(binding_entries(network.bindings))
        self._switch.insert([flood_group(network.ports)])
        self._switch.insert(self.losses.entries)


def _of_job(counts: Mapping[tuple[int, int], Count], number: int) -> dict[int, Count]:
    return {rank: count for (job, rank), count in counts.items() if job == number}


def port_list(ports: Iterable[int]) -> tuple[int, ...]:
    """The distinct ports, sorted."""
    return tuple(sorted(set(ports)))
