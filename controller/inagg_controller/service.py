# SPDX-License-Identifier: Apache-2.0
"""Drives the job table: gives it the time, carries out its effects on the switch, wakes those who wait.

Everything here runs in one asyncio loop, so the job table needs no lock. The switch blocks, so it lives on a thread
of its own, which takes one call after another: effects keep their order, and none runs beside a reconnection.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from inagg_contract.sizes import data_mtu
from inagg_controller.errors import (
    InvalidRequestError,
    SwitchError,
    SwitchRefusedError,
    SwitchTakenError,
    SwitchUnreachableError,
    UnavailableError,
)
from inagg_controller.jobs.calls import Report
from inagg_controller.jobs.job import Effect, Install, Job
from inagg_controller.jobs.table import SWITCH_RESTARTED, SWITCH_TAKEN, JobTable
from inagg_controller.switch.client import Count, Switch
from inagg_controller.switch.entries import Binding, Member, aggregator_entries, binding_entries, flood_group
from inagg_controller.switch.loss import LossChange, Losses

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_TICK_S = 0.1
_REMOVAL_S = 1.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What the controller is told about the network it serves.

    Addresses are integers. ports: the switch's ports. hosts: IPv4 address -> switch port, where known beforehand.
    bindings: those of them whose MAC address is known as well. words: 256-byte words in a DATA packet.
    """

    ports: tuple[int, ...]
    hosts: Mapping[int, int]
    bindings: tuple[Binding, ...] = ()
    aggregator_ip: int
    aggregator_mac: int
    aggregator_udp_port: int
    words: int


class Service:
    """The running controller. All methods belong to the loop that start() ran in.

    on_crash: called when a defect has ended one of its tasks; the controller should then end as well.
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
        self.link = "connecting"
        self.link_error: str | None = None
        self._switch = switch
        self._clock = clock
        self._on_crash = on_crash
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inagg-switch")
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._seen_version = jobs.version
        self._work = asyncio.Event()
        self._link_lost = asyncio.Event()
        # One connection at a time is current; news about an earlier one is old.
        self._connection = 0
        self.connects = 0
        self._broken_connection = 0
        self._stopping = False
        self._attended: set[asyncio.Timeout] = set()
        self._loss_lock = asyncio.Lock()
        self._last_counts: dict[int, dict[int, Count]] = {}

    async def start(self, wait_s: float = 0.0) -> None:
        """Connect, waiting up to wait_s for a switch that is not there yet. Raises SwitchError."""
        deadline = self._clock() + wait_s
        while self.link != "connected":
            try:
                await self._connect()
            except SwitchUnreachableError as error:
                if self._clock() >= deadline:
                    raise
                if self.link_error is None:
                    _log.info("waiting for the switch: %s", error)
                self.link_error = str(error)
                await asyncio.sleep(_FIRST_PAUSE_S)
        for body in (self._tick_on, self._carry_out_effects, self._keep_connected):
            task = asyncio.create_task(body(), name=body.__name__)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Stop; what is in the switch stays there until the next start pushes the pipeline afresh."""
        self.stop_waiting()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._on_switch(self._switch.close)
        self._thread.shutdown()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """None of the tasks ends by itself; a controller that has lost one must not look alive."""
        if not task.cancelled():
            _log.critical("%s has failed", task.get_name(), exc_info=task.exception())
            self._on_crash()

    def stop_waiting(self) -> None:
        """Answer everybody who waits with the present state, from now on at once."""
        self._stopping = True
        self._changed.set()
        for until in self._attended:
            until.reschedule(asyncio.get_running_loop().time())

    async def create(self, workers: int, slots: int, name: str, creator: str | None = None) -> Job:
        """See JobTable.create. Slots that are about to be free are waited for, a moment."""
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
        """See JobTable.register. Raises InvalidRequestError for a MAC address that is another's."""
        self._check_mac(member)
        job = self.jobs.register(number, member, self._clock())
        _log.info("job %d: rank %d registered, %d of %d", number, member.rank, len(job.members), job.workers)
        self._publish()
        return job

    def port_of(self, ip: int, udp_port: int, port: int | None) -> int:
        """The switch port of a worker, from its own word or from what is known. Raises InvalidRequestError."""
        if ip == self.network.aggregator_ip:
            raise InvalidRequestError("ip is the aggregator's own")
        if udp_port == self.network.aggregator_udp_port:
            raise InvalidRequestError(f"udp_port {udp_port} is reserved for the aggregator")
        known = self.network.hosts.get(ip)
        found = known if port is None else port
        if found is None:
            raise InvalidRequestError("port is missing, and no --host option tells the port of this address")
        if known not in (None, found):
            raise InvalidRequestError(f"port is {found}, but a --host option says {known} for this address")
        if found not in self.network.ports:
            raise InvalidRequestError(f"port is {found}; the switch's ports are {list(self.network.ports)}")
        return found

    def _check_mac(self, member: Member) -> None:
        network = self.network
        bound = {binding.mac for binding in network.bindings if binding.ip == member.ip}
        if member.mac == network.aggregator_mac:
            raise InvalidRequestError("mac is the aggregator's own")
        if bound and member.mac not in bound:
            raise InvalidRequestError("mac is not the one that a --host option says for this ip")
        if not bound and any(binding.mac == member.mac for binding in network.bindings):
            raise InvalidRequestError("mac is that of another host, says a --host option")

    def check_mtu(self, mtu: int | None) -> None:
        """See that a worker's path takes a DATA packet; None is not known. Raises InvalidRequestError."""
        needed = data_mtu(self.network.words)
        if mtu is not None and mtu < needed:
            raise InvalidRequestError(
                f"mtu is {mtu}, but a DATA packet of this switch takes {needed} bytes (WORDS = {self.network.words}):"
                " give every link on the way a larger MTU, or run the P4 program compiled with fewer WORDS"
            )

    def heartbeat(self, number: int, rank: int, report: Report | None) -> Job:
        """See JobTable.heartbeat."""
        job = self.jobs.heartbeat(number, rank, self._clock(), report)
        if self.jobs.version != self._seen_version:
            _log.warning("job %d %s: %s", number, job.state, job.reason)
            self._publish()
        return job

    async def attend(self, number: int, rank: int, beats: AsyncIterable[object]) -> Job:
        """Watch a rank live, until `beats` end, and with them its process, or until stop_waiting()."""
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
        """The job as soon as it is no longer joining, or as it is after timeout_s."""
        job = self.jobs.job(number)
        try:
            async with asyncio.timeout(timeout_s):
                while job.state == "joining" and not self._stopping:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return job

    async def job_counts(self, job: Job) -> Mapping[int, Count] | None:
        """Rank -> what the switch has admitted for the job, at its end if it has ended; None if unknown."""
        if job.state != "running" or self.link != "connected":
            return self._last_counts.get(job.id)
        try:
            return _of_job(await self._on_switch(self._switch.read_admitted), job.id)
        except SwitchError as error:
            self._note(error)
            return None

    async def counters(self) -> Mapping[str, Mapping[int, Count]]:
        """The indexed counters that are not zero: name -> port -> count."""
        return await self._ask(partial(self._switch.read_counters, self.network.ports))

    async def admitted(self) -> Mapping[tuple[int, int], Count]:
        """(job, rank) -> what the switch has admitted."""
        return await self._ask(self._switch.read_admitted)

    def heartbeat_ages(self, job: Job) -> dict[int, float]:
        """Rank -> seconds since it was last heard of, for those that have not left."""
        now = self._clock()
        return {rank: max(0.0, now - seen) for rank, seen in job.last_seen.items() if rank not in job.left}

    async def set_loss(self, port: int, direction: str, traffic: str, probability: float) -> None:
        """Inject loss; nothing has changed if this raises."""
        if port not in self.network.ports:
            raise InvalidRequestError(f"port is {port}; the switch's ports are {list(self.network.ports)}")
        async with self._loss_lock:
            await self._change_loss(self.losses.setting(port, direction, traffic, probability))

    async def clear_loss(self) -> None:
        """Inject no loss any more."""
        async with self._loss_lock:
            await self._change_loss(self.losses.clearing())

    async def _change_loss(self, change: LossChange) -> None:
        await self._ask(partial(self._write_loss, change))
        self.losses.commit(change)

    def _write_loss(self, change: LossChange) -> None:
        self._switch.remove(change.remove)
        self._switch.modify(change.modify)
        self._switch.insert(change.insert)

    async def _ask(self, call: Callable[[], _T]) -> _T:
        """A call for which the switch must be there."""
        if self.link != "connected":
            raise UnavailableError(f"the switch is not connected: {self.link_error}")
        try:
            return await self._on_switch(call)
        except SwitchError as error:
            self._note(error)
            raise UnavailableError(str(error)) from error

    async def _on_switch(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

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
                    await self._on_switch(partial(self._perform, effect))
                except SwitchRefusedError as refusal:
                    error = str(refusal)
                    _log.error("job %d: %s", effect.job, error)
                except SwitchUnreachableError as loss:
                    self._note(loss)
                    break
                self.jobs.done(effect, self._clock(), error)
                if isinstance(effect, Install) and error is None:
                    _log.info("job %d: entries installed", effect.job)
                self._publish()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Install):
            for stage in effect.entries.stages:
                self._switch.insert(stage)
        else:
            self._last_counts[effect.job] = _of_job(self._switch.read_admitted(), effect.job)
            for stage in reversed(effect.entries.stages):
                self._switch.remove(stage)

    def _note(self, error: SwitchError) -> None:
        """A call on the switch has failed: perhaps the connection has."""
        if isinstance(error, SwitchUnreachableError):
            self._lose_link(self._connection, error)

    def _lose_link(self, connection: int, error: SwitchUnreachableError) -> None:
        if connection != self._connection or self._broken_connection == connection:
            return
        self._broken_connection = connection
        if self.link == "connected":
            _log.error("%s; its jobs have failed", error)
            self.link, self.link_error = "lost", str(error)
            taken = isinstance(error, SwitchTakenError)
            self.jobs.switch_lost(self._clock(), SWITCH_TAKEN if taken else SWITCH_RESTARTED)
            self._publish()
            self._link_lost.set()

    async def _keep_connected(self) -> None:
        while True:
            await self._link_lost.wait()
            self._link_lost.clear()
            pause = _FIRST_PAUSE_S
            while self.link != "connected":
                try:
                    await self._connect()
                    _log.info("the switch is back, with a fresh pipeline")
                except SwitchError as error:
                    if str(error) != self.link_error:
                        _log.warning("reconnecting: %s", error)
                    self.link_error = str(error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._connection += 1
        connection = self._connection

        def on_lost(error: SwitchUnreachableError) -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile: nobody to tell
                loop.call_soon_threadsafe(self._lose_link, connection, error)

        async with self._loss_lock:
            await self._on_switch(partial(self._switch.connect, on_lost))
            await self._on_switch(self._write_ground)
        if self._broken_connection == connection:
            raise SwitchUnreachableError("the switch closed the connection at once")
        self.link, self.link_error = "connected", None
        self.connects += 1
        self.jobs.switch_connected()
        self._publish()

    def _write_ground(self) -> None:
        """What the switch needs before any job."""
        network = self.network
        self._switch.insert(aggregator_entries(network.aggregator_ip, network.aggregator_mac))
        self._switch.insert(binding_entries(network.bindings))
        self._switch.insert([flood_group(network.ports)])
        self._switch.insert(self.losses.entries)


def _of_job(counts: Mapping[tuple[int, int], Count], number: int) -> dict[int, Count]:
    return {rank: count for (job, rank), count in counts.items() if job == number}


def port_list(ports: Iterable[int]) -> tuple[int, ...]:
    """Ports in order, each once."""
    return tuple(sorted(set(ports)))
