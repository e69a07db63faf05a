# SPDX-License-Identifier: Apache-2.0
"""The routes of the HTTP API. Errors are problem documents (RFC 9457). `guard` decides who may make which request.

Every handler is a coroutine in the service's loop, which makes the job table safe without a lock.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, Literal, TypeVar, cast

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect

from inagg_contract.addresses import parse_ip
from inagg_contract.documents import (
    LONGEST_KEY,
    LONGEST_REASON,
    Beat,
    Counters,
    CreatedJob,
    Exchange,
    Frozen,
    Health,
    Heartbeat,
    JobList,
    JobStatus,
    Loss,
    LossList,
    LostWay,
    NewJob,
    NewServer,
    NewWorker,
    Problem,
    RankAnswer,
    RankAnswers,
    RankBeats,
    RegisteredWorker,
    Resumed,
    ServerBeat,
    ServerOrders,
    ServerRegistration,
    WayChange,
)
from inagg_controller.errors import RequestError, UnavailableError
from inagg_controller.http.answers import BoundedAnswers
from inagg_controller.http.connections import Connections
from inagg_controller.http.guard import (
    Bodies,
    CreatorRoute,
    Gate,
    JobRoute,
    OpenRoute,
    OperatorRoute,
    host_of,
)
from inagg_controller.http.health_documents import health_of, loss_list
from inagg_controller.http.job_documents import (
    chunks_of,
    heartbeat_answer,
    job_key,
    job_status,
    packet_counts,
    registered_worker,
    report_of,
    served_job,
    summed_of,
    way_change,
    with_ranks,
    worker_beside,
)
from inagg_controller.http.live import add_live_page, overview_router
from inagg_controller.http.metrics import ApiCounts, exposition
from inagg_controller.http.overviews import Overviews
from inagg_controller.http.problems import PROBLEMS, add_handlers, problem_of, refusal
from inagg_controller.http.reference import reference_page
from inagg_controller.jobs.servers import INTERVAL_S, TIMEOUT_S
from inagg_controller.logs import RecentLines
from inagg_controller.service import Service

_T = TypeVar("_T")

_LONGEST_WAIT_S = 60.0
_Key = Annotated[str, Header(pattern=r"^[!-~]*$", max_length=LONGEST_KEY)]
_Wait = Annotated[float, Query(ge=0, le=_LONGEST_WAIT_S, allow_inf_nan=False)]

_DESCRIPTION = """Manages training jobs whose gradients switches or servers sum, the switches, and the servers.

A secret is sent as "Authorization: Bearer SECRET". The answer to POST /jobs contains the job's secret. A controller
with --tenants creates jobs only for those who have a tenant's token. The operator's token is in the controller's
--token-file and is accepted in place of every job's secret, and of a tenant's token. Errors are problem documents
(RFC 9457)."""

# Only for the API's description. The route classes check secrets, before a body is read.
_JOBS_SECRET = Depends(HTTPBearer(scheme_name="secret of the job", auto_error=False))
_TENANTS_TOKEN = Depends(
    HTTPBearer(scheme_name="tenant's token, if the controller has tenants", auto_error=False)
)
_OPERATORS_TOKEN = Depends(HTTPBearer(scheme_name="operator's token", auto_error=False))


def create_app(
    service: Service,
    operators_token: str,
    connections: Connections | None = None,
    lines: RecentLines | None = None,
) -> FastAPI:
    """The API of a service. connections: the server's connections, for the metrics. lines: the log's, for /overview."""
    app = _described(service, connections, lines)
    app.state.gate = Gate(operators_token, service.jobs.job, service.jobs.tenants)
    app.state.bodies = Bodies()
    app.state.refusals = Counter()
    app.add_middleware(BoundedAnswers, bodies=app.state.bodies, refuse=partial(refusal, app))
    add_handlers(app)
    return app


def description() -> dict[str, Any]:
    """The API's OpenAPI description, which needs no service."""
    return _described(cast(Service, None), None, None).openapi()


def _described(service: Service, connections: Connections | None, lines: RecentLines | None) -> FastAPI:
    app = FastAPI(
        title="inagg controller",
        version=version("inagg"),
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect names the host that the request named
        responses=PROBLEMS,
    )
    for router in (_open, _of_creators, _of_members, _of_the_operator, _of_servers):
        app.include_router(router(service))
    app.include_router(overview_router(Overviews(service, lines or RecentLines())))
    add_live_page(app)
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
        return health_of(service)

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
                    job = service.heartbeat(each.job, each.rank, report_of(each.beat))
                    answer = RankAnswer.model_construct(heartbeat=heartbeat_answer(job))
                except RequestError as refused:
                    request.app.state.refusals[refused.status] += 1
                    answer = RankAnswer.model_construct(problem=Problem(**problem_of(refused)))
                answers.append(answer.model_dump_json().encode())
                take(len(answers[-1]))
        return Response(b'{"answers":[' + b",".join(answers) + b"]}", media_type="application/json")

    return router


def _of_creators(service: Service) -> APIRouter:
    router = APIRouter(route_class=CreatorRoute, dependencies=[_TENANTS_TOKEN])

    @router.post("/jobs", status_code=201)
    async def create(new: NewJob, request: Request, idempotency_key: _Key = "") -> CreatedJob:
        """Create a job and lease slots for it in each switch of its tree, or memory of each registered server: the
        requested number of slots, or fewer if they are scarce. A job on shared slots leases no slots. The
        answer contains the secret that all other requests about the job need. A request that is repeated with the
        same key gets the same job, also if the controller has restarted meanwhile."""
        gate: Gate = request.app.state.gate
        creator = None if gate.is_operator(request) else host_of(request.client)
        tenant = gate.tenant_of(request)
        again = service.has_created(idempotency_key, tenant)
        with gate.rates.creation(None if again else tenant):
            job = await service.create(new, creator, tenant, idempotency_key)
        if await request.is_disconnected():  # while the service waited for room
            service.give_up(job)
        return CreatedJob.model_construct(**dict(job_status(service, job)), secret=job.secret)

    return router


def _of_members(service: Service) -> APIRouter:
    router = APIRouter(route_class=JobRoute, prefix="/jobs/{number}", dependencies=[_JOBS_SECRET])

    @router.get("")
    async def job(
        number: int,
        request: Request,
        wait: Literal["registered", "running"] | None = None,
        timeout_s: _Wait = 10.0,
    ) -> JobStatus:
        """The job. With wait=running the answer comes when the job runs or has ended, or after timeout_s; with
        wait=registered also when all ranks have registered."""
        if wait is not None:
            waiting = service.wait_joined if wait == "running" else service.wait_registered
            found = service.jobs.job(number)
            await _while_connected(request, waiting(number, timeout_s))
            return job_status(service, found)
        found = service.jobs.job(number)
        counts = await _while_connected(request, service.counts.of_job(found))
        return with_ranks(job_status(service, found, counts), found)

    @router.delete("")
    async def end(number: int) -> JobStatus:
        """End the job now. Its ranks learn it with their next heartbeat."""
        return job_status(service, service.end(number))

    @router.post("/unicast")
    async def unicast(number: int) -> JobStatus:
        """Send the job's results to each worker's own address from now on: a rank does not get what is sent to
        `results` (docs/protocol.md, 5.3)."""
        return job_status(service, service.unicast(number))

    @router.post("/workers")
    async def register(number: int, new: NewWorker, request: Request) -> RegisteredWorker:
        """Register a rank with its address, which must be the one that the request comes from, or another of the same
        host (docs/protocol.md, 7). When the last rank is registered, the job's switches and servers learn of the job;
        then it runs. Repeating the same request changes nothing."""
        return registered_worker(service, service.register(number, new, _asker(request)))

    @router.post("/workers/{rank}/serving")
    async def serving(number: int, rank: int) -> JobStatus:
        """Report that the server in a rank's process serves the job, once all ranks have registered. The job runs when
        all its servers do and its switch, if it has one, has its entries."""
        return job_status(service, service.serve(number, rank))

    @router.post("/workers/{rank}/heartbeat")
    async def heartbeat(number: int, rank: int, body: Beat | None = None) -> Heartbeat:
        """Report that a rank is alive and which collectives it called; learn the job's state (docs/protocol.md, 6.3 and
        7.1)."""
        return heartbeat_answer(service.heartbeat(number, rank, None if body is None else report_of(body)))

    @router.post("/workers/{rank}/presence")
    async def presence(number: int, rank: int, request: Request, steady: bool = True) -> JobStatus:
        """Hold a connection open while the rank's process lives. The body never ends, and each part of it counts as a
        heartbeat (docs/protocol.md, 6.3). steady=false: the parts may pause while the rank's program is busy, so its
        silence counts later."""
        return job_status(
            service, await service.attend(number, rank, _until_disconnected(request), steady=steady)
        )

    @router.post("/workers/{rank}/lost-way")
    async def lost_way(number: int, rank: int, body: LostWay) -> JobStatus:
        """Report that what sums for the job does not answer this rank. The job then changes its way (docs/protocol.md,
        6.4), unless it has done so meanwhile."""
        return job_status(service, service.lose_way(number, rank, body.epoch, body.reason))

    @router.post("/workers/{rank}/frozen")
    async def frozen(
        number: int, rank: int, body: Frozen, request: Request, timeout_s: _Wait = 0.0
    ) -> WayChange:
        """Publish the next chunks of a rank that has frozen. The answer comes when all ranks have frozen, or after
        timeout_s. Repeating the same request changes nothing. `lost` is another epoch, or null, if the job has lost
        another way or has gone on."""
        chunks = chunks_of(body)
        job = await service.freeze(
            *(number, rank, body.epoch, chunks, body.server_udp_port, timeout_s),
            beside=worker_beside(rank, body.beside),
            asker=_asker(request),
        )
        return way_change(service, job, rank)

    @router.post("/workers/{rank}/results")
    async def results(number: int, rank: int, body: Exchange, timeout_s: _Wait = 0.0) -> WayChange:
        """Give results that other ranks lack, and get those that this rank lacks, once all ranks have frozen. The
        answer comes when the rank has something to do next, or after timeout_s."""
        given = {result.chunk: result.datagram for result in body.given}
        job = await service.exchange(number, rank, body.epoch, given, frozenset(body.wanted), timeout_s)
        return way_change(service, job, rank, body.wanted)

    @router.post("/workers/{rank}/resumed")
    async def resumed(number: int, rank: int, body: Resumed) -> JobStatus:
        """Report that a rank has gone on, on the way of this epoch. The job runs when all have."""
        return job_status(service, service.resume(number, rank, body.epoch))

    @router.delete("/workers/{rank}")
    async def leave(
        number: int, rank: int, error: Annotated[str | None, Query(max_length=LONGEST_REASON)] = None
    ) -> JobStatus:
        """Leave the job, which finishes when the last rank has left. With an error the job fails for all ranks."""
        return job_status(service, service.leave(number, rank, error))

    return router


def _of_the_operator(service: Service) -> APIRouter:
    router = APIRouter(route_class=OperatorRoute, dependencies=[_OPERATORS_TOKEN])

    @router.get("/jobs")
    async def jobs() -> JobList:
        """All active jobs, and jobs that ended recently."""
        return JobList(jobs=[with_ranks(job_status(service, job), job) for job in service.jobs.jobs.values()])

    @router.get("/counters")
    async def counters() -> Counters:
        """The counters of the connected switches, by switch, name and index, without those that are zero. The index is
        the port in a counter of inagg.p4, and whatever it is in one that was added to it."""
        failed: dict[str, str] = {}
        found = await service.counts.indexed(failed)
        if failed:
            raise UnavailableError("; ".join(f"switch {name}: {error}" for name, error in failed.items()))
        return {
            switch: {name: packet_counts(cells) for name, cells in counters.items()}
            for switch, counters in found.items()
        }

    @router.get("/loss")
    async def losses() -> LossList:
        """The injected loss (docs/protocol.md, 8)."""
        return loss_list(service)

    @router.put("/loss")
    async def set_loss(loss: Loss) -> LossList:
        """Drop packets of a switch's port at random; probability 0 stops it."""
        managed = service.switch(loss.switch)
        await managed.set_loss(loss.port, loss.direction, loss.traffic, loss.probability)
        return loss_list(service)

    @router.delete("/loss")
    async def clear_loss() -> LossList:
        """Remove all injected loss."""
        for managed in service.switches.values():
            await managed.clear_loss()
        return loss_list(service)

    return router


def _of_servers(service: Service) -> APIRouter:
    router = APIRouter(route_class=OperatorRoute, prefix="/servers", dependencies=[_OPERATORS_TOKEN])

    @router.post("", status_code=201)
    async def register(new: NewServer) -> ServerRegistration:
        """Register an aggregation server that starts. Jobs of an earlier start of it, or of another server at its
        address, have lost what sums for them."""
        server = service.register_server(new.name, parse_ip(new.ip), new.udp_port, new.memory)
        return ServerRegistration(
            instance=server.instance, heartbeat_interval_s=INTERVAL_S, heartbeat_timeout_s=TIMEOUT_S
        )

    @router.post("/{name}/heartbeat")
    async def heartbeat(name: str, beat: ServerBeat) -> ServerOrders:
        """Report that a server is alive and which jobs it serves; learn which it is to serve. The answer comes when
        they differ, or after the heartbeat interval."""
        refused = {job_key(job): job.reason for job in beat.refused}
        counted = {job_key(job): summed_of(job.chunks) for job in beat.counted}
        serving = map(job_key, beat.serving)
        jobs = await service.server_heartbeat(name, beat.instance, serving, refused, counted, beat.unknown)
        return ServerOrders.model_construct(jobs=tuple(served_job(service, job, name) for job in jobs))

    @router.delete("/{name}")
    async def stop(name: str, instance: int) -> Health:
        """Forget a server that stops. Its jobs have lost what sums for them."""
        service.stop_server(name, instance)
        return health_of(service)

    return router


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
