# SPDX-License-Identifier: Apache-2.0
"""The documents about jobs, and the values that requests about them carry."""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from struct import iter_unpack
from typing import Any

from inagg_contract.addresses import format_ip, format_mac, parse_ip
from inagg_contract.constants import INAGG_PORT
from inagg_contract.documents import (
    MOST_RESULT_BYTES,
    Aggregator,
    Beat,
    Beside,
    CallRange,
    Chunks,
    Displaced,
    Endpoint,
    Frozen,
    Heartbeat,
    JobServer,
    JobStatus,
    Lost,
    Mismatch,
    PacketCount,
    Policy,
    RankPlace,
    RegisteredWorker,
    Relay,
    ResultDocument,
    SameCall,
    ServedJob,
    ServedJobId,
    TreeSwitch,
    Waits,
    WayChange,
    WorkerAddress,
)
from inagg_controller.counts import JobCounts
from inagg_controller.errors import InvalidRequestError
from inagg_controller.jobs.calls import Call, Question, Report, Wait
from inagg_controller.jobs.change import Change
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.leases import Lease
from inagg_controller.jobs.servers import JobKey, ServerShare, Summed, Worker
from inagg_controller.service import Registration, Service
from inagg_controller.switch.client import Count

_NO_LEASE = Lease(0, 0)


def job_key(job: ServedJobId) -> JobKey:
    """What a server calls a job."""
    return JobKey(job.id, job.epoch)


def summed_of(chunks: Chunks) -> Summed:
    """What a server says that it has summed."""
    return Summed(chunks.switches, chunks.both, chunks.servers)


def report_of(beat: Beat) -> Report:
    """What a rank's heartbeat says."""
    return Report(
        beat.begun,
        None if beat.asked is None else Question(beat.asked.first, beat.asked.last),
        [Call(call.digest, call.text) for call in beat.calls],
        Wait(beat.sums, beat.waited_s, beat.longest_wait, beat.loading_s, beat.rtt_s),
        None if beat.chunks is None else summed_of(beat.chunks),
        beat.switch_silent,
        beat.traffic,
    )


def served_job(service: Service, job: Job, server: str) -> ServedJob:
    """The order to a registered server to serve a job. server: its name."""
    share = job.placement.servers
    assert share is not None
    return ServedJob.model_construct(
        id=job.id,
        epoch=job.placement.epoch,
        first_chunk=job.placement.first_chunk,
        slots=job.slots,
        words=service.network.words,
        index=[seat.name for seat in share.seats].index(server),
        servers=share.count,
        workers=_workers(job),
        relay=_relay(service, job),
    )


def _relay(service: Service, job: Job) -> Relay | None:
    """Where servers send the sums of a job on shared slots; None for another."""
    tree = job.placement.tree
    if not tree.switches:
        return None
    aggregator = aggregator_of(service, tree.switches[0].name)
    return Relay.model_construct(ip=aggregator.ip, udp_port=aggregator.udp_port)


def job_status(service: Service, job: Job, counts: JobCounts | None = None) -> JobStatus:
    """A job. counts: what switches have counted of it; None: not read."""
    policy, placement = service.jobs.policy, job.placement
    tree, leases, results_ip = placement.tree, placement.leases, placement.results_ip
    share = placement.servers
    return JobStatus.model_construct(
        id=job.id,
        name=job.name,
        job_class=job.owner.job_class,
        tenant=job.owner.tenant,
        priority=placement.priority,
        aggregation=placement.aggregation,
        workers=job.workers,
        state=job.state,
        epoch=placement.epoch,
        first_chunk=placement.first_chunk,
        slots=job.slots,
        words=service.network.words,
        registered=tuple(sorted(job.members)),
        left=tuple(sorted(job.left)),
        lost=_lost(job),
        reason=job.reason,
        on_path_loss=tuple(job.on_path_loss),
        changes=job.changes,
        policy=Policy(**{name: getattr(policy, name) for name in Policy.model_fields}),
        aggregator=None if not tree.switches else aggregator_of(service, tree.leaf_of[0].name),
        results=None if results_ip is None else Endpoint(ip=format_ip(results_ip), udp_port=INAGG_PORT),
        counters=None if counts is None else packet_counts(counts.admitted),
        displaced=None if counts is None else _displaced(counts.displaced),
        tree=tuple(
            TreeSwitch.model_construct(
                switch=switch.name,
                aggregator_ip=aggregator_of(service, switch.name).ip,
                first_slot_version=leases.get(switch.name, _NO_LEASE).base,
                slot_versions=leases.get(switch.name, _NO_LEASE).size,
                ranks=switch.ranks,
                below=switch.below,
                above=switch.above,
                threads=service.switches[switch.name].switch.threads,
            )
            for switch in tree.switches
        ),
        **({} if share is None else _on_servers(service, job, share)),
    )


def with_ranks(status: JobStatus, job: Job) -> JobStatus:
    """The same document with the places of the ranks."""
    ranks = (
        RankPlace.model_construct(rank=rank, ip=format_ip(member.ip), host=member.host)
        for rank, member in sorted(job.members.items())
    )
    return status.model_copy(update={"ranks": tuple(ranks)})


def registered_worker(service: Service, registration: Registration) -> RegisteredWorker:
    """The answer to a registration."""
    job, member, place = registration
    document, rank = dict(job_status(service, job)), member.rank
    if place is None:
        return RegisteredWorker(**document, rank=rank, member=rank)
    return RegisteredWorker(
        **document | {"aggregator": aggregator_of(service, place.switch)},
        rank=rank,
        member=job.placement.tree.number_of(rank),
        switch=place.switch,
        port=place.port,
    )


def _on_servers(service: Service, job: Job, share: ServerShare) -> dict[str, Any]:
    """The fields of JobStatus about a job with servers."""
    return {
        "relay": _relay(service, job),
        "servers": tuple(
            JobServer.model_construct(
                name=seat.name, ip=format_ip(seat.ip), udp_port=seat.udp_port, rank=seat.rank
            )
            for seat in share.seats
        ),
        "members": _workers(job) if share.seats else (),
        "serving": tuple(sorted(share.serving)),
        "chunks": _chunks(job),
    }


def _chunks(job: Job) -> Chunks | None:
    return None if job.summed is None else Chunks.model_construct(**job.summed._asdict())


def _displaced(counts: Mapping[tuple[str, bool], int]) -> Displaced | None:
    """The sums over all switches; None if there are none."""
    if not counts:
        return None
    totals: Counter[bool] = Counter()
    for (_, expired), count in counts.items():
        totals[expired] += count
    return Displaced.model_construct(evicted=totals[False], expired=totals[True])


def _workers(job: Job) -> tuple[WorkerAddress, ...]:
    share = job.placement.servers
    return tuple(
        WorkerAddress.model_construct(
            rank=rank,
            ip=format_ip(member.ip),
            udp_port=member.udp_port,
            rack=member.rack if isinstance(member, Worker) else "",
        )
        for rank, member in sorted({**job.members, **({} if share is None else share.beside)}.items())
    )


def heartbeat_answer(job: Job) -> Heartbeat:
    """The answer to a rank's heartbeat."""
    question, mismatch = job.comparison.question, job.mismatch
    return Heartbeat.model_construct(
        state=job.state,
        lost=_lost(job),
        reason=job.reason,
        mismatch=None
        if mismatch is None
        else Mismatch.model_construct(
            number=mismatch.number,
            calls=tuple(
                SameCall.model_construct(text=text, ranks=tuple(ranks))
                for text, ranks in mismatch.ranks_by_text().items()
            ),
        ),
        ask=None if question is None else CallRange(first=question.first, last=question.last),
        waits={
            rank: Waits.model_construct(
                sums=wait.sums,
                waited_s=wait.waited_s,
                longest_wait=wait.longest,
                loading_s=wait.loading_s,
                rtt_s=wait.rtt_s,
            )
            for rank, wait in job.waits.items()
        },
        chunks=_chunks(job),
        lost_way=None if job.change is None else job.change.lost,
        lost_why=None if job.change is None else job.change.reason,
    )


def way_change(service: Service, job: Job, rank: int, wanted: Iterable[int] = ()) -> WayChange:
    """The state of a job's change of way, for a rank. wanted: chunks whose results it still lacks."""
    change = job.change
    if change is None:
        return WayChange.model_construct(state=job.state, reason=job.reason)
    ready = service.jobs.changing.ready(job)
    way = service.way_of(job, rank) if ready or not job.placement.served_by(rank) else None
    return WayChange.model_construct(
        state=job.state,
        reason=job.reason,
        lost=change.lost,
        frozen=change.frozen,
        lacks=tuple(change.lacks(rank)),
        gives=tuple(change.gives(rank)),
        results=tuple(_results(change, wanted)),
        way=None if way is None else registered_worker(service, way),
        ready=ready,
        lost_for_s=service.lost_for_s(change),
    )


def _results(change: Change, wanted: Iterable[int]) -> Iterator[ResultDocument]:
    """As many as one answer may have."""
    room = MOST_RESULT_BYTES
    for chunk in wanted:
        datagram = change.results.get(chunk, b"")
        room -= len(datagram)
        if datagram and room >= 0:
            yield ResultDocument.model_construct(chunk=chunk, datagram=datagram)


def worker_beside(rank: int, beside: Beside | None) -> Worker | None:
    """A rank as a worker in a network beside that of the switches."""
    if beside is None:
        return None
    ip = parse_ip(beside.ip)
    return Worker(rank=rank, ip=ip, udp_port=beside.udp_port, server_udp_port=beside.server_udp_port)


def chunks_of(frozen: Frozen) -> "array[int]":
    """The chunk numbers that a rank publishes. Raises InvalidRequestError."""
    if len(frozen.chunks) % 4:
        raise InvalidRequestError("chunks has no whole number of 32-bit numbers")
    return array("I", [number for (number,) in iter_unpack(">I", frozen.chunks)])


def _lost(job: Job) -> tuple[Lost, ...]:
    return tuple(Lost(rank=rank, reason=reason) for rank, reason in job.gone.items())


def packet_counts(counts: Mapping[int, Count]) -> dict[int, PacketCount]:
    """Counts by the same keys."""
    return {key: PacketCount(packets=count.packets, bytes=count.bytes) for key, count in counts.items()}


def aggregator_of(service: Service, name: str) -> Aggregator:
    """The address that the members of a switch send to. name: of the switch."""
    node = service.topology.by_name[name]
    return Aggregator(ip=format_ip(node.ip), mac=format_mac(node.mac), udp_port=INAGG_PORT)
