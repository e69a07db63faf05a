# SPDX-License-Identifier: Apache-2.0
"""Everything that a person watches, as one document: GET /overview, GET /events.

An overview is made when somebody asks, and serves all who ask within a second.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, NamedTuple

from inagg_contract.addresses import format_ip
from inagg_contract.constants import WORD_BYTES
from inagg_contract.counters import JOB_PACKETS, RESULTS_SENT
from inagg_contract.documents import (
    JobWay,
    LateRank,
    LogLine,
    Overview,
    OverviewHost,
    OverviewJob,
    OverviewRank,
    PortTraffic,
    SlotRange,
    Waits,
)
from inagg_contract.lateness import late_ranks
from inagg_controller.errors import SwitchError, SwitchRefusedError, UnavailableError
from inagg_controller.http.health_documents import health_of
from inagg_controller.jobs.calls import Wait
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.leases import Lease
from inagg_controller.logs import Line, RecentLines
from inagg_controller.managed import ManagedSwitch
from inagg_controller.service import Service
from inagg_controller.switch.client import Count, SlotVersion
from inagg_controller.switch.entries import Member

_log = logging.getLogger(__name__)

INTERVAL_S = 1.0
_MOST_VERSIONS = 256  # of slots, of a switch
_READ_S = 2.0  # a read of a switch that takes longer is left out
_MOST_ENDED = 20  # jobs
_LATE_S = 5.0  # in which ranks are late
_MOST_LISTENERS = {False: 32, True: 64}  # by whether they have the operator's token


class _Counts(NamedTuple):
    """What switches have counted. traffic: switch -> counter -> port; admitted: switch -> (job, member).
    slots: what they hold, switch -> index of a slot version."""

    traffic: Mapping[str, Mapping[str, Mapping[int, Count]]]
    admitted: Mapping[str, Mapping[tuple[int, int], Count]]
    slots: Mapping[str, Mapping[int, SlotVersion]]


class _Waits:
    """What ranks have waited in the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[int, Mapping[int, Wait]]]] = deque()

    def late(self, jobs: Sequence[Job], now: float) -> Mapping[int, Sequence[LateRank]]:
        """Job -> the ranks that others have waited for since these jobs were seen before. now: seconds of a clock."""
        while self._seen and now - self._seen[0][0] > _LATE_S + INTERVAL_S:
            self._seen.popleft()
        before = self._seen[0][1] if self._seen else {}
        self._seen.append((now, {job.id: dict(job.waits) for job in jobs}))
        return {job.id: _late(before.get(job.id, {}), job) for job in jobs}


def _late(before: Mapping[int, Wait], job: Job) -> Sequence[LateRank]:
    """The late ranks of a job since then; empty if a rank has not reported twice, or has begun to count anew."""
    if not len(before) == len(job.waits) == job.workers:
        return ()
    waits = {
        rank: {
            "sums": now.sums - before[rank].sums,
            "waited_s": now.waited_s - before[rank].waited_s,
            "loading_s": now.loading_s - before[rank].loading_s,
            "rtt_s": now.rtt_s,
        }
        for rank, now in job.waits.items()
    }
    if any(value < 0 for wait in waits.values() for value in wait.values()):
        return ()
    return tuple(LateRank.model_construct(**late) for late in late_ranks(waits))


class Made:
    """An overview, without the log. lines: of the log until then. now: when it was made, in seconds of a clock."""

    def __init__(self, overview: Overview, lines: Sequence[Line], now: float) -> None:
        self.overview = overview
        self.lines = lines
        self.now = now
        self._texts: dict[int, str] = {}

    def text(self, after: int = 0) -> str:
        """It as JSON, with the lines of the log after this one: made once for all who have seen the same lines."""
        if after not in self._texts:
            lines = [line for line in self.lines if line.number > after]
            self._texts[after] = _with_log(self.overview, lines).model_dump_json()
        return self._texts[after]


class Overviews:
    """Makes the overviews of a service. lines: of its log. clock: gives seconds."""

    def __init__(
        self, service: Service, lines: RecentLines, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._service = service
        self._lines = lines
        self._clock = clock
        self._making = asyncio.Lock()
        self._made: dict[bool, Made] = {}  # by whether it is the operator's
        self._waits = _Waits()
        self._listeners = {False: 0, True: 0}
        # Switches that do not show their slots: name -> the connect at which that was seen.
        self._hidden: dict[str, int] = {}

    async def latest(self, *, operators: bool) -> Made:
        """An overview of the last second. operators: with all that the operator may read."""
        async with self._making:
            now, last = self._clock(), self._made.get(operators)
            if last is None or now - last.now >= INTERVAL_S * 0.9:
                overview = await self._make(operators)
                lines = self._lines.after(0) if operators else ()
                last = self._made[operators] = Made(overview, lines, now)
            return last

    @contextmanager
    def listening(self, *, operators: bool) -> Iterator[None]:
        """Count a client that listens while the block runs. Raises UnavailableError if there are too many."""
        if self._listeners[operators] >= _MOST_LISTENERS[operators]:
            how = "with" if operators else "without"
            raise UnavailableError(
                f"{_MOST_LISTENERS[operators]} clients listen {how} the operator's token, the limit; ask GET /overview"
            )
        self._listeners[operators] += 1
        try:
            yield
        finally:
            self._listeners[operators] -= 1

    async def each_second(self, *, operators: bool) -> AsyncIterator[str]:
        """One overview a second as JSON, until the controller stops. Each has the lines of the log since the one
        before."""
        seen = 0
        while not self._service.stopping:
            found = await self.latest(operators=operators)
            yield found.text(seen)
            seen = found.lines[-1].number if found.lines else seen
            await self._service.pause(INTERVAL_S)

    async def _make(self, operators: bool) -> Overview:
        service = self._service
        known: dict[str, Any] = {"at": time.time(), "version": version("inagg"), "operators": operators}
        if not operators:
            return Overview.model_construct(**known, health=health_of(service))
        counts = _Counts(
            *await asyncio.gather(
                service.counts.traffic(_READ_S), service.counts.admitted(_READ_S), self._slots()
            )
        )
        jobs = _shown(service)
        late = self._waits.late([job for job in jobs if not job.ended], self._clock())
        return Overview.model_construct(
            **known,
            health=health_of(service),
            jobs=tuple(_job(service, job, counts, late.get(job.id, ())) for job in jobs),
            hosts=tuple(
                OverviewHost.model_construct(name=host.name, ip=format_ip(host.ip), at=str(host.place))
                for host in service.topology.hosts
            ),
            ports=tuple(_ports(counts.traffic)),
        )

    async def _slots(self) -> Mapping[str, Mapping[int, SlotVersion]]:
        """What some slot versions of running jobs hold, at the connected switches that show it in time."""
        wanted: dict[str, list[Lease]] = {}
        for job in self._service.jobs.jobs.values():
            for name, lease in job.placement.leases.items() if job.state == "running" else ():
                wanted.setdefault(name, []).append(lease)
        found = {}

        async def read_at(name: str, leases: Sequence[Lease]) -> None:
            managed = self._service.switches[name]
            connects = managed.connection.connects
            if not managed.connected or self._hidden.get(name) == connects:
                return
            most = _MOST_VERSIONS // len(leases)
            managed.sampled = [index for lease in leases for index in _sampled(lease, most)]
            try:
                async with asyncio.timeout(_READ_S):
                    found[name] = await managed.read(ManagedSwitch.read_slots)
            except TimeoutError:
                _log.debug("switch %s: its slots could not be read in %g s", name, _READ_S)
            except SwitchRefusedError as error:
                self._hidden[name] = connects
                _log.info("switch %s does not show its slots: %s", name, error)
            except SwitchError as error:
                _log.debug("switch %s: its slots could not be read: %s", name, error)

        await asyncio.gather(*(read_at(name, leases) for name, leases in wanted.items()))
        return found


def _with_log(found: Overview, lines: Sequence[Line]) -> Overview:
    log = (LogLine.model_construct(at=line.at, level=line.level, text=line.text) for line in lines)
    return found.model_copy(update={"log": tuple(log)})


def _sampled(lease: Lease, most: int) -> range:
    """Slot versions of a lease at even distances, at most so many."""
    return range(lease.base, lease.base + lease.size, -(-lease.size // most)) if most else range(0)


def _range(job: Job, switch: str, lease: Lease, slots: Mapping[int, SlotVersion]) -> SlotRange:
    epoch, members = job.placement.epoch, job.placement.tree.by_name[switch].members
    return SlotRange.model_construct(
        switch=switch,
        first=lease.base,
        count=lease.size,
        members=members,
        contributions=tuple(
            version.members.bit_count() if version.epoch == epoch else 0
            for index, version in sorted(slots.items())
            if lease.base <= index < lease.base + lease.size
        ),
    )


def _shown(service: Service) -> list[Job]:
    """The active jobs, and those that ended last."""
    jobs = service.jobs.jobs.values()
    ended = sorted((job for job in jobs if job.ended), key=lambda job: job.ended_at or 0.0)
    return [*(job for job in jobs if not job.ended), *ended[-_MOST_ENDED:]]


def _job(service: Service, job: Job, counts: _Counts, late: Sequence[LateRank]) -> OverviewJob:
    placement = job.placement
    leases = {} if placement.freed else placement.leases
    return OverviewJob.model_construct(
        id=job.id,
        name=job.name,
        state=job.state,
        reason=job.reason,
        changing=None if job.change is None else job.change.reason,
        workers=job.workers,
        slots=job.slots,
        payload_bytes=service.network.words * WORD_BYTES,
        aggregation=placement.aggregation,
        title=placement.title,
        tenant=job.owner.tenant,
        priority=placement.priority,
        age_s=service.seconds_since(job.created_at),
        ways=tuple(
            JobWay.model_construct(
                title=way.title,
                aggregation=way.aggregation,
                reason=way.reason,
                ago_s=service.seconds_since(way.since),
                taken_s=way.taken_s,
            )
            for way in job.ways
        ),
        leases=tuple(_range(job, name, lease, counts.slots.get(name, {})) for name, lease in leases.items()),
        ranks=tuple(_ranks(service, job, counts.admitted)),
        late=tuple(late),
    )


def _ranks(
    service: Service, job: Job, admitted: Mapping[str, Mapping[tuple[int, int], Count]]
) -> Iterator[OverviewRank]:
    ages, gone = service.heartbeat_ages(job), job.gone
    leaf_of = job.placement.tree.leaf_of
    for rank in range(job.workers):
        member = job.members.get(rank)
        wait = job.waits.get(rank)
        leaf = leaf_of.get(rank)
        count = None
        if leaf is not None and job.state == "running":
            count = admitted.get(leaf.name, {}).get((job.id, leaf.ranks.index(rank)))
        host = None if member is None else service.topology.host_at.get(member.ip)
        at = str(host.place) if host is not None else None
        if at is None and isinstance(member, Member) and leaf is not None:
            at = f"{leaf.name}:{member.port}"
        state = "awaited" if member is None else "joined"
        if rank in job.lost:
            state = "lost"
        elif rank in job.left or job.state == "finished":
            state = "left"
        yield OverviewRank.model_construct(
            rank=rank,
            host="" if member is None else member.host,
            ip="" if member is None else format_ip(member.ip),
            at=at,
            state=state,
            reason=gone.get(rank) if rank in job.lost else None,
            heartbeat_age_s=None if job.ended else ages.get(rank),
            waits=None
            if wait is None
            else Waits.model_construct(
                sums=wait.sums,
                waited_s=wait.waited_s,
                longest_wait=wait.longest,
                loading_s=wait.loading_s,
                rtt_s=wait.rtt_s,
            ),
            traffic=job.traffic.get(rank),
            bytes=None if count is None else count.bytes,
        )


def _ports(traffic: Mapping[str, Mapping[str, Mapping[int, Count]]]) -> Iterator[PortTraffic]:
    for switch, counters in traffic.items():
        received: Counter[int] = Counter()
        for name in JOB_PACKETS:
            received.update({port: count.bytes for port, count in counters.get(name, {}).items()})
        sent = {port: count.bytes for port, count in counters.get(RESULTS_SENT, {}).items()}
        for port in sorted({*received, *sent}):
            yield PortTraffic.model_construct(
                switch=switch, port=port, received=received[port], results_sent=sent.get(port, 0)
            )
