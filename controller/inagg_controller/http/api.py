# SPDX-License-Identifier: Apache-2.0
"""The routes of the HTTP API. Errors are problem documents (RFC 9457). `guard` decides who may make which request.

Every handler is a coroutine in the service's loop, which makes the job table safe without a lock.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeVar, cast

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from inagg_contract.addresses import format_ip, format_mac, parse_ip, parse_mac
from inagg_contract.constants import INAGG_PORT
from inagg_contract.documents import (
    LONGEST_REASON,
    Aggregator,
    Beat,
    CallRange,
    Chunks,
    Counters,
    CreatedJob,
    Displaced,
    Endpoint,
    Health,
    Heartbeat,
    JobList,
    JobServer,
    JobStatus,
    LinkHealth,
    Loss,
    LossList,
    Lost,
    Mismatch,
    NewJob,
    NewServer,
    NewWorker,
    PacketCount,
    Policy,
    Problem,
    RankAnswer,
    RankAnswers,
    RankBeats,
    RankPlace,
    RegisteredWorker,
    Relay,
    SameCall,
    ServedJob,
    ServedJobId,
    ServerBeat,
    ServerHealth,
    ServerOrders,
    ServerRegistration,
    SwitchHealth,
    TreeSwitch,
    Waits,
    WorkerAddress,
)
from inagg_controller.errors import InvalidRequestError, RequestError, UnavailableError
from inagg_controller.fabric.topology import Link
from inagg_controller.http.answers import BoundedAnswers
from inagg_controller.http.connections import Connections
from inagg_controller.http.guard import Bodies, Gate, JobRoute, OpenRoute, OperatorRoute, host_of
from inagg_controller.http.metrics import ApiCounts, exposition
from inagg_controller.http.reference import reference_page
from inagg_controller.jobs.calls import Call, Question, Report, Wait
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.leases import Lease
from inagg_controller.jobs.servers import INTERVAL_S, TIMEOUT_S, JobKey, Server, Summed, Worker
from inagg_controller.service import JobCounts, Service
from inagg_controller.switch.client import Count
from inagg_controller.switch.entries import Member

_T = TypeVar("_T")

_LONGEST_WAIT_S = 60.0
_MOST_ERRORS = 10
_NO_LEASE = Lease(0, 0)

_DESCRIPTION = """Manages training jobs whose gradients switches or servers sum, the switches, and the servers.

A secret is sent as "Authorization: Bearer SECRET". The answer to POST /jobs contains the job's secret. The operator's
token is in the controller's --token-file and is accepted in place of every job's secret. Errors are problem documents
(RFC 9457)."""

_PROBLEM = {"content": {"application/problem+json": {"schema": Problem.model_json_schema()}}}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    "422": {"description": "A value is invalid", **_PROBLEM},
    "4XX": {"description": "Refused; nothing has changed", **_PROBLEM},
    "5XX": {
        "description": "A switch or server is missing or full, or the controller has failed",
        **_PROBLEM,
    },
}

# Only for the API's description. The route classes check secrets, before a body is read.
_JOBS_SECRET = Depends(HTTPBearer(scheme_name="secret of the job", auto_error=False))
_OPERATORS_TOKEN = Depends(HTTPBearer(scheme_name="operator's token", auto_error=False))


def create_app(service: Service, operators_token: str, connections: Connections | None = None) -> FastAPI:
    """The API of a service. connections: the server's connections, for the metrics."""
    app = _described(service, connections)
    app.state.gate = Gate(operators_token, service.jobs.job)
    app.state.bodies = Bodies()
    app.state.refusals = Counter()
    app.add_middleware(BoundedAnswers, bodies=app.state.bodies, refuse=partial(_refusal, app))
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _failed)
    return app


def description() -> dict[str, Any]:
    """The API's OpenAPI description, which needs no service."""
    return _described(cast(Service, None), None).openapi()


def _described(service: Service, connections: Connections | None) -> FastAPI:
    app = FastAPI(
        title="inagg controller",
        version=version("inagg"),
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect names the host that the request named
        responses=_PROBLEMS,
    )
    for router in (_open(service), _of_members(service), _of_the_operator(service), _of_servers(service)):
        app.include_router(router)
    _add_pages(app, service, connections)
    return app


def _add_pages(app: FastAPI, service: Service, connections: Connections | None) -> None:
    operators = APIRouter(route_class=OperatorRoute, dependencies=[_OPERATORS_TOKEN])

    @operators.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """All metrics, for Prometheus."""
        opened, refused, not_http = (
            (0, 0, 0)
            if connections is None
            else (connections.open, connections.refused, connections.not_http)
        )
        api = ApiCounts(opened, refused, app.state.refusals + Counter({400: not_http}))
        return Response(await exposition(service, api), media_type=CONTENT_TYPE_LATEST)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return HTMLResponse(reference_page(app.openapi()), headers=policy)

    app.include_router(operators)


def _open(service: Service) -> APIRouter:
    router = APIRouter(route_class=OpenRoute)

    @router.get("/health")
    async def health() -> Health:
        """Whether the switches are connected, their links and resources, and the servers. Needs no secret."""
        return _health(service)

    @router.post("/jobs", status_code=201)
    async def create(new: NewJob, request: Request) -> CreatedJob:
        """Create a job and lease slots for it in each switch of its tree, or memory of each registered server: the
        requested number of slots, or fewer if they are scarce. A job on shared slots leases no slots. Needs no secret.
        The answer contains the secret that all other requests about the job need."""
        job = await service.create(new, None if _asker(request) is None else host_of(request.client))
        if await request.is_disconnected():  # while the service waited for room
            service.end(job.id)
        return CreatedJob.model_construct(**dict(_job(service, job)), secret=job.secret)

    @router.post("/heartbeats", response_model=RankAnswers)
    async def heartbeats(body: RankBeats, request: Request) -> Response:
        """The heartbeats of the groups of one process. Each has its own secret and its own answer: a refused one does
        not affect the others."""
        answers = []
        with request.app.state.bodies.room(host_of(request.client)) as take:
            for each in body.beats:
                await asyncio.sleep(0)  # other requests have their turn
                try:
                    request.app.state.gate.check(str(each.job), each.secret)
                    job = service.heartbeat(each.job, each.rank, _report(each.beat))
                    answer = RankAnswer.model_construct(heartbeat=_heartbeat(job))
                except RequestError as refused:
                    request.app.state.refusals[refused.status] += 1
                    answer = RankAnswer.model_construct(problem=Problem(**_problem_of(refused)))
                answers.append(answer.model_dump_json().encode())
                take(len(answers[-1]))
        return Response(b'{"answers":[' + b",".join(answers) + b"]}", media_type="application/json")

    return router


def _of_members(service: Service) -> APIRouter:
    router = APIRouter(route_class=JobRoute, prefix="/jobs/{number}", dependencies=[_JOBS_SECRET])

    @router.get("")
    async def job(
        number: int,
        request: Request,
        wait: Literal["registered", "running"] | None = None,
        timeout_s: Annotated[float, Query(ge=0, le=_LONGEST_WAIT_S, allow_inf_nan=False)] = 10.0,
    ) -> JobStatus:
        """The job. With wait=running the answer comes when the job runs or has ended, or after timeout_s; with
        wait=registered also when all ranks have registered."""
        if wait is not None:
            waiting = service.wait_joined if wait == "running" else service.wait_registered
            found = service.jobs.job(number)
            await _while_connected(request, waiting(number, timeout_s))
            return _job(service, found)
        found = service.jobs.job(number)
        counts = await _while_connected(request, service.job_counts(found))
        return _with_ranks(_job(service, found, counts), found)

    @router.delete("")
    async def end(number: int) -> JobStatus:
        """End the job now. Its ranks learn it with their next heartbeat."""
        return _job(service, service.end(number))

    @router.post("/unicast")
    async def unicast(number: int) -> JobStatus:
        """Send the job's results to each worker's own address from now on: a rank does not get what is sent to
        `results` (docs/protocol.md, 5.3)."""
        return _job(service, service.unicast(number))

    @router.post("/workers")
    async def register(number: int, new: NewWorker, request: Request) -> RegisteredWorker:
        """Register a rank with its address, which must be the one that the request comes from, or another of the same
        host (docs/protocol.md, 7). When the last rank is registered, the job's switches and servers learn of the job;
        then it runs. Repeating the same request changes nothing."""
        ip = parse_ip(new.ip)
        service.check_owner(ip, _asker(request))
        found = service.jobs.job(number)
        service.check_mtu(found, new.mtu)
        if found.aggregation == "server":
            worker = Worker(
                rank=new.rank,
                ip=ip,
                udp_port=new.udp_port,
                server_udp_port=new.server_udp_port,
                host=new.host,
            )
            found = service.register_on_servers(number, worker)
            return RegisteredWorker(**dict(_job(service, found)), rank=worker.rank, member=worker.rank)
        if new.mac is None:
            raise InvalidRequestError("mac is missing: the switch needs it in a job on switches")
        place = service.place_of(ip, new.udp_port, new.port)
        member = Member(
            rank=new.rank,
            ip=ip,
            mac=parse_mac(new.mac),
            udp_port=new.udp_port,
            port=place.port,
            server_udp_port=new.server_udp_port,
            host=new.host,
        )
        found = service.register(number, member, place.switch)
        document = dict(_job(service, found)) | {"aggregator": _aggregator(service, place.switch)}
        return RegisteredWorker(
            **document,
            rank=member.rank,
            member=found.tree.number_of(member.rank),
            switch=place.switch,
            port=place.port,
        )

    @router.post("/workers/{rank}/serving")
    async def serving(number: int, rank: int) -> JobStatus:
        """Report that the server in a rank's process serves the job, once all ranks have registered. The job runs when
        all its servers do and its switch, if it has one, has its entries."""
        return _job(service, service.serve(number, rank))

    @router.post("/workers/{rank}/heartbeat")
    async def heartbeat(number: int, rank: int, body: Beat | None = None) -> Heartbeat:
        """Report that a rank is alive and which collectives it called; learn the job's state (docs/protocol.md, 6.3 and
        7.1)."""
        return _heartbeat(service.heartbeat(number, rank, None if body is None else _report(body)))

    @router.post("/workers/{rank}/presence")
    async def presence(number: int, rank: int, request: Request, steady: bool = True) -> JobStatus:
        """Hold a connection open while the rank's process lives. The body never ends, and each part of it counts as a
        heartbeat (docs/protocol.md, 6.3). steady=false: the parts may pause while the rank's program is busy, so its
        silence counts later."""
        return _job(service, await service.attend(number, rank, _until_disconnected(request), steady=steady))

    @router.delete("/workers/{rank}")
    async def leave(
        number: int, rank: int, error: Annotated[str | None, Query(max_length=LONGEST_REASON)] = None
    ) -> JobStatus:
        """Leave the job, which finishes when the last rank has left. With an error the job fails for all ranks."""
        return _job(service, service.leave(number, rank, error))

    return router


def _of_the_operator(service: Service) -> APIRouter:
    router = APIRouter(route_class=OperatorRoute, dependencies=[_OPERATORS_TOKEN])

    @router.get("/jobs")
    async def jobs() -> JobList:
        """All active jobs, and jobs that ended recently."""
        return JobList(jobs=[_with_ranks(_job(service, job), job) for job in service.jobs.jobs.values()])

    @router.get("/counters")
    async def counters() -> Counters:
        """The counters of the connected switches, by switch, name and index, without those that are zero. The index is
        the port in a counter of inagg.p4, and whatever it is in one that was added to it."""
        failed: dict[str, str] = {}
        found = await service.counters(failed)
        if failed:
            raise UnavailableError("; ".join(f"switch {name}: {error}" for name, error in failed.items()))
        return {
            switch: {name: _counts(cells) for name, cells in counters.items()}
            for switch, counters in found.items()
        }

    @router.get("/loss")
    async def losses() -> LossList:
        """The injected loss (docs/protocol.md, 8)."""
        return _losses(service)

    @router.put("/loss")
    async def set_loss(loss: Loss) -> LossList:
        """Drop packets of a switch's port at random; probability 0 stops it."""
        managed = service.switch(loss.switch)
        await managed.set_loss(loss.port, loss.direction, loss.traffic, loss.probability)
        return _losses(service)

    @router.delete("/loss")
    async def clear_loss() -> LossList:
        """Remove all injected loss."""
        for managed in service.switches.values():
            await managed.clear_loss()
        return _losses(service)

    return router


def _of_servers(service: Service) -> APIRouter:
    router = APIRouter(route_class=OperatorRoute, prefix="/servers", dependencies=[_OPERATORS_TOKEN])

    @router.post("", status_code=201)
    async def register(new: NewServer) -> ServerRegistration:
        """Register an aggregation server that starts. Jobs of an earlier start of it, or of another server at its
        address, fail."""
        server = service.register_server(new.name, parse_ip(new.ip), new.udp_port, new.memory)
        return ServerRegistration(
            instance=server.instance, heartbeat_interval_s=INTERVAL_S, heartbeat_timeout_s=TIMEOUT_S
        )

    @router.post("/{name}/heartbeat")
    async def heartbeat(name: str, beat: ServerBeat) -> ServerOrders:
        """Report that a server is alive and which jobs it serves; learn which it is to serve. The answer comes when
        they differ, or after the heartbeat interval."""
        refused = {_key(job): job.reason for job in beat.refused}
        counted = {_key(job): _summed(job.chunks) for job in beat.counted}
        serving = map(_key, beat.serving)
        jobs = await service.server_heartbeat(name, beat.instance, serving, refused, counted, beat.unknown)
        return ServerOrders.model_construct(jobs=tuple(_served_job(service, job, name) for job in jobs))

    @router.delete("/{name}")
    async def stop(name: str, instance: int) -> Health:
        """Forget a server that stops. Its jobs fail."""
        service.stop_server(name, instance)
        return _health(service)

    return router


def _key(job: ServedJobId) -> JobKey:
    return JobKey(job.id, job.epoch)


def _summed(chunks: Chunks) -> Summed:
    return Summed(chunks.switches, chunks.both, chunks.servers)


def _served_job(service: Service, job: Job, server: str) -> ServedJob:
    assert job.servers is not None
    return ServedJob.model_construct(
        id=job.id,
        epoch=job.epoch,
        slots=job.slots,
        words=service.network.words,
        index=[seat.name for seat in job.servers.seats].index(server),
        servers=job.servers.count,
        workers=_workers(job),
        relay=_relay(service, job),
    )


def _relay(service: Service, job: Job) -> Relay | None:
    if not job.tree.switches:
        return None
    aggregator = _aggregator(service, job.tree.switches[0].name)
    return Relay.model_construct(ip=aggregator.ip, udp_port=aggregator.udp_port)


def _job(service: Service, job: Job, counts: JobCounts | None = None) -> JobStatus:
    policy = service.jobs.policy
    return JobStatus.model_construct(
        id=job.id,
        name=job.name,
        job_class=job.job_class,
        priority=job.priority,
        workers=job.workers,
        state=job.state,
        epoch=job.epoch,
        slots=job.slots,
        words=service.network.words,
        registered=tuple(sorted(job.members)),
        left=tuple(sorted(job.left)),
        lost=_lost(job),
        reason=job.reason,
        policy=Policy(**{name: getattr(policy, name) for name in Policy.model_fields}),
        aggregator=None if not job.tree.switches else _aggregator(service, job.tree.leaf_of[0].name),
        results=None
        if job.results_ip is None
        else Endpoint(ip=format_ip(job.results_ip), udp_port=INAGG_PORT),
        counters=None if counts is None else _counts(counts.admitted),
        displaced=None if counts is None else _displaced(counts.displaced),
        tree=tuple(
            TreeSwitch.model_construct(
                switch=switch.name,
                aggregator_ip=_aggregator(service, switch.name).ip,
                first_slot_version=job.leases.get(switch.name, _NO_LEASE).base,
                slot_versions=job.leases.get(switch.name, _NO_LEASE).size,
                ranks=switch.ranks,
                below=switch.below,
                above=switch.above,
            )
            for switch in job.tree.switches
        ),
        **_on_servers(service, job),
    )


def _with_ranks(status: JobStatus, job: Job) -> JobStatus:
    ranks = (
        RankPlace.model_construct(rank=rank, ip=format_ip(member.ip), host=member.host)
        for rank, member in sorted(job.members.items())
    )
    return status.model_copy(update={"ranks": tuple(ranks)})


def _on_servers(service: Service, job: Job) -> dict[str, Any]:
    """The fields of JobStatus about a job with servers; none for another."""
    share = job.servers
    if share is None:
        return {}
    return {
        "aggregation": job.aggregation,
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
    return tuple(
        WorkerAddress.model_construct(rank=rank, ip=format_ip(member.ip), udp_port=member.udp_port)
        for rank, member in sorted(job.members.items())
    )


def _health(service: Service) -> Health:
    switches = [_switch_health(service, name) for name in service.switches]
    jobs = sum(not job.ended for job in service.jobs.jobs.values())
    servers = tuple(_server_health(service, server) for server in service.jobs.servers.values())
    if not switches:
        return Health.model_construct(
            switch="none",
            switch_error=None,
            words=service.network.words,
            slot_versions=0,
            free_slot_versions=0,
            jobs=jobs,
            switches=(),
            links=(),
            servers=servers,
        )
    away = next((switch for switch in switches if switch.state != "connected"), switches[0])
    scarcest = min(switches, key=lambda switch: switch.free_slot_versions)
    return Health.model_construct(
        switch=away.state,
        switch_error=away.error,
        words=service.network.words,
        slot_versions=scarcest.slot_versions,
        free_slot_versions=scarcest.free_slot_versions,
        shared_slots=service.jobs.limits.shared_slots,
        aggregator=switches[0].aggregator,
        jobs=jobs,
        switches=tuple(switches),
        links=tuple(_link_health(service, link) for link in service.topology.links),
        servers=servers,
    )


def _server_health(service: Service, server: Server) -> ServerHealth:
    return ServerHealth.model_construct(
        name=server.name,
        ip=format_ip(server.ip),
        udp_port=server.udp_port,
        memory=server.memory,
        free_memory=server.free,
        jobs=len(service.jobs.orders(server.name, server.instance)),
        unknown=server.unknown,
    )


def _switch_health(service: Service, name: str) -> SwitchHealth:
    connection, pool = service.switches[name].connection, service.jobs.pools[name]
    return SwitchHealth.model_construct(
        name=name,
        state=connection.state,
        error=connection.error,
        slot_versions=pool.size,
        free_slot_versions=pool.free,
        aggregator=_aggregator(service, name),
    )


def _link_health(service: Service, link: Link) -> LinkHealth:
    return LinkHealth.model_construct(
        ends=(str(link.ends[0]), str(link.ends[1])),
        state=service.links.states[link],
        reason=service.links.reasons.get(link, ""),
    )


def _asker(request: Request) -> str | None:
    """The address that a request comes from; None for the operator."""
    if request.app.state.gate.is_operator(request):
        return None
    return "" if request.client is None else request.client.host


async def _while_connected(request: Request, waiting: Awaitable[_T]) -> _T | None:
    """The result of `waiting`; None as soon as the client has gone. Raises what `waiting` raises."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    wanted, leaving = asyncio.ensure_future(waiting), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((wanted, leaving), return_when=asyncio.FIRST_COMPLETED)
        return wanted.result() if wanted.done() else None
    finally:
        wanted.cancel()
        leaving.cancel()


async def _until_disconnected(request: Request) -> AsyncIterator[bytes]:
    """The parts of the body, until the client closes the connection."""
    with suppress(ClientDisconnect):
        async for piece in request.stream():
            yield piece


def _report(beat: Beat) -> Report:
    return Report(
        beat.begun,
        None if beat.asked is None else Question(beat.asked.first, beat.asked.last),
        [Call(call.digest, call.text) for call in beat.calls],
        Wait(beat.sums, beat.waited_s, beat.longest_wait),
        None if beat.chunks is None else _summed(beat.chunks),
    )


def _heartbeat(job: Job) -> Heartbeat:
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
            rank: Waits.model_construct(sums=wait.sums, waited_s=wait.waited_s, longest_wait=wait.longest)
            for rank, wait in job.waits.items()
        },
        chunks=_chunks(job),
    )


def _lost(job: Job) -> tuple[Lost, ...]:
    return tuple(Lost(rank=rank, reason=reason) for rank, reason in job.gone.items())


def _counts(counts: Mapping[int, Count]) -> dict[int, PacketCount]:
    return {key: PacketCount(packets=count.packets, bytes=count.bytes) for key, count in counts.items()}


def _aggregator(service: Service, name: str) -> Aggregator:
    node = service.topology.by_name[name]
    return Aggregator(ip=format_ip(node.ip), mac=format_mac(node.mac), udp_port=INAGG_PORT)


def _losses(service: Service) -> LossList:
    return LossList(
        loss=[
            Loss(
                switch=name,
                port=place.port,
                direction="ingress" if place.direction == "ingress" else "egress",
                probability=probability,
                traffic="aggregation" if place.aggregation else "other",
            )
            for name, managed in service.switches.items()
            for place, probability in managed.losses
        ]
    )


def _document(status: int, kind: str, title: str, detail: str) -> dict[str, Any]:
    return {"type": f"urn:inagg:{kind}", "title": title, "status": status, "detail": detail}


def _problem_of(error: RequestError) -> dict[str, Any]:
    return _document(error.status, error.kind, error.title, str(error))


def _problem(
    status: int, kind: str, title: str, detail: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(
        _document(status, kind, title, detail),
        status_code=status,
        headers=headers,
        media_type="application/problem+json",
    )


def _refusal(app: FastAPI, error: RequestError) -> Response:
    app.state.refusals[error.status] += 1
    return _problem(error.status, error.kind, error.title, str(error), error.headers)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _refusal(request.app, error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    request.app.state.refusals[422] += 1
    errors = error.errors()
    places = ((".".join(str(part) for part in each["loc"]), each["msg"]) for each in errors[:_MOST_ERRORS])
    detail = "; ".join(f"{place}: {message}" for place, message in places)
    if len(errors) > _MOST_ERRORS:
        detail += f"; and {len(errors) - _MOST_ERRORS} more"
    return _problem(422, "invalid-request", "Invalid request", detail)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    request.app.state.refusals[error.status_code] += 1
    title = HTTPStatus(error.status_code).phrase
    headers = dict(error.headers or {})
    path = getattr(request.scope.get("route"), "path", None)
    methods = request.app.openapi()["paths"].get(path)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and methods is not None:
        # Starlette names only the methods of one route, but here every method has its own route.
        headers["Allow"] = ", ".join(sorted(method.upper() for method in methods))
    return _problem(error.status_code, title.lower().replace(" ", "-"), title, str(error.detail), headers)


async def _failed(request: Request, error: Exception) -> Response:
    request.app.state.refusals[500] += 1
    # Starlette logs the traceback once this answer is sent.
    detail = f"{type(error).__name__} in the controller; its log has the details"
    return _problem(500, "internal-error", "Internal error", detail)
