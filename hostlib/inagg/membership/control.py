# SPDX-License-Identifier: Apache-2.0
"""A worker's side of the controller's HTTP API.

A failed request is repeated, with backoff, until the client's timeout has passed; a heartbeat never: the next one
follows soon. The creation of a job has a key, by which the controller finds the job again. While a group starts, the
controller may be busy with other ranks' requests, or start again, for as long as `setup_s` and `absent_s` say.
"""

import contextlib
import json
import logging
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel

from inagg.base_errors import (
    ConfigurationError,
    ControllerError,
    ControllerForbiddenError,
    ControllerRefusedError,
    ControllerUnreachableError,
)
from inagg.membership.presence import HttpsPresence, Presence, TcpPresence
from inagg.membership.sockets import ending_in_silence
from inagg.sums.journal import Report
from inagg_contract.aggregation import COLOCATED, LEASED, SERVER, AskedAggregation, ServerKind
from inagg_contract.documents import (
    FOREIGN_ADDRESS,
    LONGEST_REASON,
    MOST_BEATS,
    MOST_BODY_BYTES,
    Beat,
    Beside,
    CallDocument,
    CallRange,
    Chunks,
    CountedJob,
    Counters,
    CreatedJob,
    Exchange,
    Frozen,
    Health,
    Heartbeat,
    JobStatus,
    Loss,
    LostWay,
    NewJob,
    NewServer,
    NewWorker,
    PathLoss,
    RankAnswer,
    RankAnswers,
    RankBeat,
    RankBeats,
    RefusedJob,
    RegisteredWorker,
    ResultDocument,
    Resumed,
    ServedJobId,
    ServerBeat,
    ServerOrders,
    ServerRegistration,
    WayChange,
    read,
)
from inagg_contract.tokens import is_token

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

# Long polls are cut into pieces of this length: within one piece a dead connection, or rank, is noticed.
_LONG_POLL_S = 1.0

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0

# Linux repeats a lost SYN after 1 s, then 3 s. A new attempt after this time is faster.
_CONNECT_TIMEOUT_S = 1.5

# A connection whose data the controller's host does not acknowledge for this time ends.
_SILENT_S = 3.0

# For the texts in a heartbeat. The rest of the body is room for its other fields.
_MOST_CALLS_BYTES = MOST_BODY_BYTES - 48_576


def _trusted(url: str, authority: Path | None) -> ssl.SSLContext | bool:
    """Whose certificates an HTTPS URL may have: of the authority in this file only, else of the system's.

    The system's are those of SSL_CERT_FILE and SSL_CERT_DIR where these are set. httpx would take those of certifi.
    """
    if urlsplit(url).scheme != "https":
        return False
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:  # ssl.SSLError is one
        problem = "no certificate in PEM form" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigurationError(
            f"controller_ca {authority}: {problem}; it must be the certificate of the authority that signed the "
            "controller's"
        ) from error


def _is_refusal(error: BaseException | None) -> bool:
    """Whether a host has refused a connection: no process listens there, but one may soon."""
    while error is not None and not isinstance(error, ConnectionRefusedError):
        error = error.__cause__ or error.__context__
    return error is not None


def new_key() -> str:
    """A key by which the controller knows requests for the same job."""
    return secrets.token_urlsafe()


class ControlClient:
    """The controller's HTTP API. May be shared between threads; connections are reused.

    base_url: such as "http://10.0.0.254:9560". timeout_s: time allowed for one request, repeats included. setup_s: the
    same for the requests of a group that starts, by default timeout_s. absent_s: after this time a controller whose
    host refuses connections is given up, by default timeout_s: it may start again. A host that is silent is given up
    after timeout_s.
    token: the operator's, or a tenant's. Without it a client may create jobs if the controller has no tenants, and use
    jobs whose secret it knows: those that it has created, and those given to `learn_secret`. authority: the file with
    the certificate of the authority that signed the controller's, for an https URL; by default, the system's
    authorities. source: the address of this host that its connections come from; by default, the one that the route to
    the controller has. transport: replaces the network in tests.

    Every method raises ControllerUnreachableError if no answer comes in time, and ControllerRefusedError if the
    controller answers with an error. If a secret is missing or wrong, that is its subclass ControllerForbiddenError.
    The constructor raises ConfigurationError if `authority` cannot be read.
    """

    def __init__(
        self,
        base_url: str,
        timeout_s: float = 5.0,
        *,
        setup_s: float | None = None,
        absent_s: float | None = None,
        token: str | None = None,
        authority: Path | None = None,
        source: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.timeout_s = timeout_s
        self.setup_s = timeout_s if setup_s is None else setup_s
        self.absent_s = timeout_s if absent_s is None else absent_s
        self.authority = authority
        self._token = token
        self._secrets: dict[int, str] = {}
        self._closed = False
        # Not an httpx.Client, which would log every heartbeat at INFO, among the user's own requests. No proxies from
        # the environment: they do not lead to a controller on the training network.
        self._own_transport = transport is None
        self._transport = transport or httpx.HTTPTransport(
            verify=_trusted(base_url, authority),
            trust_env=False,
            socket_options=ending_in_silence(_SILENT_S),
            local_address=source,
        )

    def close(self) -> None:
        """Close the connections. The client cannot be used afterwards."""
        self._closed = True
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def health(self) -> Health:
        """The controller's and the switch's state."""
        return self._read(
            Health, self._request("GET", "/health", timeout_s=self.setup_s), "a controller's health"
        )

    def create_job(
        self,
        workers: int,
        slots: int,
        *,
        name: str = "",
        hosts: Sequence[str] | None = None,
        aggregation: AskedAggregation = LEASED,
        servers: ServerKind = COLOCATED,
        priority: int = 0,
        job_class: str | None = None,
        on_path_loss: Sequence[PathLoss] = (),
        token: str | None = None,
        key: str | None = None,
    ) -> JobStatus:
        """Create a job of `workers` ranks (1 to 4096); ask for `slots` slots (a power of two, at least 2).

        hosts: the IPv4 address of each rank's host, by rank. A controller of several switches needs them.
        aggregation, servers, priority, job_class, on_path_loss: as in `Options`. token: of the tenant whose job it is;
        None: this client's. key: of `new_key`, the same for requests that are to create one job together.
        """
        body = NewJob.model_construct(
            workers=workers,
            slots=slots,
            name=name,
            hosts=None if hosts is None else list(hosts),
            aggregation=aggregation,
            servers=servers,
            priority=priority,
            job_class=job_class,
            on_path_loss=list(on_path_loss),
        )
        headers = {"Idempotency-Key": key or new_key()}
        document = self._request(
            "POST", "/jobs", body=body, timeout_s=self.setup_s, headers=headers, token=token
        )
        created = self._read(CreatedJob, document, "a new job")
        self.learn_secret(created.id, created.secret)
        return created

    def secret(self, job: int) -> str:
        """The secret with which this client makes requests about a job; empty without one. Others need it too."""
        return self._secrets.get(job, self._token) or ""

    def learn_secret(self, job: int, secret: Any) -> None:
        """Use the secret of a job that another client has created. Raises ControllerError if it cannot be a secret."""
        if not (isinstance(secret, str) and is_token(secret)):
            raise self._wrong_answer("a new job", "it has no secret, or none that a header can carry")
        self._secrets[job] = secret

    def register(
        self,
        job: int,
        rank: int,
        *,
        ip: str,
        udp_port: int,
        mac: str | None = None,
        mtu: int | None = None,
        port: int | None = None,
        server_udp_port: int | None = None,
        host: str = "",
        rack: str = "",
    ) -> RegisteredWorker:
        """Register this worker's address. Registering the same address again changes nothing.

        mac: needed for a job on switches. mtu: the largest IP packet on the way to the aggregator, in bytes. The
        controller refuses one that is too small. port: the switch port of this host; None if the controller knows it
        from its options or topology file. server_udp_port: of the server in this process. host: the name of this host,
        for messages. rack: of its rack; empty: as the controller knows.

        The controller takes the address that a request comes from for this host's. So if it refuses `ip`, this asks
        again from there.
        """
        body = NewWorker.model_construct(
            rank=rank,
            ip=ip,
            udp_port=udp_port,
            mac=mac,
            mtu=mtu,
            port=port,
            server_udp_port=server_udp_port,
            host=host,
            rack=rack,
        )
        path = f"/jobs/{job}/workers"
        try:
            document = self._request("POST", path, job=job, body=body, timeout_s=self.setup_s)
        except ControllerRefusedError as refused:
            if refused.kind != FOREIGN_ADDRESS or not self._own_transport:
                raise
            with ControlClient(
                self.base_url, self.timeout_s, setup_s=self.setup_s, authority=self.authority, source=ip
            ) as there:
                there.learn_secret(job, self.secret(job))
                try:
                    document = there._request("POST", path, job=job, body=body, timeout_s=self.setup_s)
                except ControllerUnreachableError:
                    raise refused from None
        status = self._read(RegisteredWorker, document, f"rank {rank} of job {job}")
        if status.id != job or rank >= status.workers:
            raise self._wrong_answer(
                f"rank {rank} of job {job}", f"job {status.id} of {status.workers} workers"
            )
        return status

    def status(self, job: int) -> JobStatus:
        """The job now, with its counters while the switch is connected."""
        return self._job("GET", job)

    def unicast(self, job: int, *, timeout_s: float | None = None) -> JobStatus:
        """Have the job's results sent to each worker's own address. Repeating it changes nothing."""
        return self._job("POST", job, "/unicast", timeout_s=timeout_s)

    def serving(self, job: int, rank: int, *, timeout_s: float | None = None) -> JobStatus:
        """Say that the server in this rank's process admits the job's packets."""
        return self._job("POST", job, f"/workers/{rank}/serving", timeout_s=timeout_s or self.setup_s)

    def wait_running(
        self,
        job: int,
        *,
        until: Literal["running", "registered"] = "running",
        timeout_s: float = 300.0,
        check: Callable[[], None] = lambda: None,
    ) -> JobStatus:
        """Wait until every rank has registered and the switch or the servers sum for the job.

        until: "registered" waits for the ranks only. check: called about once a second, and
        every timeout_s while the controller is busy; what it raises ends the wait.

        Raises JobError when the job fails or ends instead, or when ranks are still missing after timeout_s.
        """
        from inagg.errors import JobError  # here, because it imports torch, which a server does without

        answered = time.monotonic()
        deadline = answered + timeout_s
        while True:
            wait_s = max(0.0, min(_LONG_POLL_S, self.timeout_s / 2, deadline - time.monotonic()))
            try:
                status = self._job("GET", job, params={"wait": until, "timeout_s": wait_s})
            except ControllerUnreachableError as error:
                busy, now = isinstance(error.__cause__, httpx.ReadTimeout), time.monotonic()
                starting = _is_refusal(error) and now < answered + self.absent_s
                if now >= deadline or not (busy or starting):
                    raise
                check()
                continue
            answered = time.monotonic()
            registered = len(status.registered) == status.workers and status.state == "joining"
            begun = ("running", "changing") if until == "running" else ("running",)
            if status.state in begun or (until == "registered" and registered):
                return status
            named: dict[str, Any] = {"job": job, "job_name": status.name}
            if status.state != "joining":
                raise JobError(f"{status.state}: {status.reason or 'every rank has left'}", **named)
            check()
            if time.monotonic() >= deadline:
                missing = sorted(set(range(status.workers)) - set(status.registered))
                if not missing:
                    which = {LEASED: "the switch has", SERVER: "its servers have"}.get(
                        status.aggregation, "the switch and its servers have"
                    )
                    raise JobError(
                        f"{which} not taken the job within {timeout_s:g} s, though every rank has registered. "
                        "Look at the controller's log.",
                        **named,
                    )
                raise JobError(
                    f"ranks {missing} have not registered within {timeout_s:g} s. Look at their logs, and at "
                    "whether they were given the same job.",
                    **named,
                )

    def lost_way(
        self, job: int, rank: int, epoch: int, reason: str, *, timeout_s: float | None = None
    ) -> JobStatus:
        """Report that what sums for the job does not answer. epoch: of the way."""
        body = LostWay.model_construct(epoch=epoch, reason=reason[:LONGEST_REASON])
        return self._job("POST", job, f"/workers/{rank}/lost-way", body=body, timeout_s=timeout_s)

    def frozen(
        self,
        job: int,
        rank: int,
        epoch: int,
        chunks: bytes,
        server_udp_port: int | None,
        beside: Beside | None = None,
        *,
        hold_s: float,
        timeout_s: float,
    ) -> WayChange:
        """Publish the next chunks of this rank, which has frozen, because the job has lost the way of `epoch`.

        chunks, server_udp_port, beside: as in Frozen. hold_s: how long the controller waits for other ranks.
        """
        body = Frozen.model_construct(
            epoch=epoch, chunks=chunks, server_udp_port=server_udp_port, beside=beside
        )
        return self._change(job, rank, "frozen", body, hold_s, timeout_s)

    def exchange(
        self,
        job: int,
        rank: int,
        epoch: int,
        given: Sequence[tuple[int, bytes]],
        wanted: Sequence[int],
        *,
        hold_s: float,
        timeout_s: float,
    ) -> WayChange:
        """Give results (chunk, datagram) that others lack, and get those that this rank wants; after frozen()."""
        body = Exchange.model_construct(
            epoch=epoch,
            given=[
                ResultDocument.model_construct(chunk=chunk, datagram=datagram) for chunk, datagram in given
            ],
            wanted=list(wanted),
        )
        return self._change(job, rank, "results", body, hold_s, timeout_s)

    def resumed(self, job: int, rank: int, epoch: int, *, timeout_s: float | None = None) -> JobStatus:
        """Report that this rank has gone on, on the way of `epoch`."""
        body = Resumed.model_construct(epoch=epoch)
        return self._job("POST", job, f"/workers/{rank}/resumed", body=body, timeout_s=timeout_s)

    def _change(
        self, job: int, rank: int, step: str, body: BaseModel, hold_s: float, timeout_s: float
    ) -> WayChange:
        path, params = f"/jobs/{job}/workers/{rank}/{step}", {"timeout_s": hold_s}
        document = self._request("POST", path, job=job, body=body, params=params, timeout_s=timeout_s)
        return self._read(WayChange, document, "a change of way")

    def heartbeat(
        self, job: int, rank: int, report: Report | None = None, *, timeout_s: float | None = None
    ) -> Heartbeat:
        """Report that this rank lives and what it calls. The answer is the state of the job.

        It is sent once: without an answer this raises ControllerUnreachableError, after a few seconds if the
        controller's host is silent, and after timeout_s otherwise.
        """
        body = Beat() if report is None else _beat(report)
        path = f"/jobs/{job}/workers/{rank}/heartbeat"
        answer = self._request("POST", path, job=job, body=body, timeout_s=timeout_s, repeat=False)
        return self._read(Heartbeat, answer, "a heartbeat")

    def heartbeats(
        self, beats: Sequence[tuple[int, int, str, Report]], *, timeout_s: float | None = None
    ) -> list[Heartbeat | ControllerRefusedError]:
        """As `heartbeat`, for several ranks of this process at once: (job, rank, secret, report), without texts.

        Returns, for each, the answer or the refusal. If no answer comes to all of them, this raises as `heartbeat`.
        """
        found: list[Heartbeat | ControllerRefusedError] = []
        for first in range(0, len(beats), MOST_BEATS):
            some = beats[first : first + MOST_BEATS]
            body = RankBeats.model_construct(
                beats=[
                    RankBeat.model_construct(job=job, rank=rank, secret=secret, beat=_beat(report))
                    for job, rank, secret, report in some
                ]
            )
            document = self._request("POST", "/heartbeats", body=body, timeout_s=timeout_s, repeat=False)
            answers = self._read(RankAnswers, document, "the answer to heartbeats").answers
            if len(answers) != len(some):
                raise self._wrong_answer(f"the answer to {len(some)} heartbeats", f"{len(answers)} answers")
            found += [self._beat_answer(answer) for answer in answers]
        return found

    def _beat_answer(self, answer: RankAnswer) -> Heartbeat | ControllerRefusedError:
        if answer.heartbeat is not None:
            return answer.heartbeat
        if answer.problem is None:
            raise self._wrong_answer("the answer to a heartbeat", "neither an answer nor a problem")
        problem = answer.problem.model_dump()
        return self._refusal(problem["status"], problem, "POST /heartbeats", "", "")

    @property
    def shared_with(self) -> tuple[object, ...]:
        """Equal for clients that could send one another's requests."""
        standard = type(self) is ControlClient and self._own_transport
        return (os.getpid(), self.base_url, self.authority) if standard else (os.getpid(), id(self))

    def attend(self, job: int, rank: int, interval_s: float) -> Presence:
        """Open the connection by which the controller sees that this process lives (docs/protocol.md, 6.3).

        interval_s: between its beats.
        """
        url = urlsplit(self.base_url)
        path = f"/jobs/{job}/workers/{rank}/presence"
        headers = self._authorization(job)
        if url.scheme == "https":
            for_ever = httpx.Timeout(None)
            return HttpsPresence(
                lambda body: self._send(
                    "POST", f"{path}?steady=false", content=body, headers=headers, timeout=for_ever
                ),
                interval_s,
            )
        address = (url.hostname or "", url.port or 80)

        def attempt(remaining: float) -> socket.socket:
            self._check_open()
            return socket.create_connection(address, min(remaining, _CONNECT_TIMEOUT_S))

        def connect() -> socket.socket:
            return self._repeat(attempt, f"POST {path}", self.absent_s)

        return TcpPresence(connect, url.path + path, {"Host": url.netloc, **headers}, interval_s)

    def leave(
        self, job: int, rank: int, *, error: str | None = None, timeout_s: float | None = None
    ) -> JobStatus:
        """Leave the job; it finishes when the last rank has left. Leaving twice changes nothing.

        error: why this rank gives up. The job then fails at once, and the other ranks learn the reason.
        """
        params = None if error is None else {"error": error}
        return self._job("DELETE", job, f"/workers/{rank}", params=params, timeout_s=timeout_s)

    def end_job(self, job: int) -> JobStatus:
        """End a job now, whatever its workers do."""
        return self._job("DELETE", job)

    def set_loss(
        self,
        port: int,
        direction: str,
        probability: float,
        traffic: str = "all",
        *,
        switch: str | None = None,
    ) -> None:
        """Drop packets of a switch port at random (docs/protocol.md, 8).

        direction: "ingress" or "egress", seen from the switch. traffic: "aggregation", "other" or "all". switch: its
        name, needed if the controller has several.
        """
        body = Loss.model_construct(
            switch=switch, port=port, direction=direction, probability=probability, traffic=traffic
        )
        self._request("PUT", "/loss", body=body)

    def clear_loss(self) -> None:
        """Stop dropping packets on purpose, on every port."""
        self._request("DELETE", "/loss")

    def register_server(self, name: str, ip: str, udp_port: int, memory: int) -> ServerRegistration:
        """Register an aggregation server, as the operator. memory: bytes that it gives to jobs."""
        body = NewServer.model_construct(name=name, ip=ip, udp_port=udp_port, memory=memory)
        return self._read(ServerRegistration, self._request("POST", "/servers", body=body), "a registration")

    def server_beat(
        self,
        name: str,
        instance: int,
        serving: Sequence[tuple[int, int]],
        refused: Mapping[tuple[int, int], str],
        counted: Mapping[tuple[int, int], Mapping[str, int]],
        unknown: int = 0,
        *,
        timeout_s: float | None = None,
    ) -> ServerOrders:
        """Report which jobs (number, epoch) a server serves, and which it cannot and why; learn which it should.

        counted: the chunks that it has summed for each job, by where they were summed. unknown: see ServerBeat.

        The answer comes when those are others, or after the heartbeat interval. It is sent once, as `heartbeat` is.
        """
        body = ServerBeat.model_construct(
            instance=instance,
            serving=[ServedJobId.model_construct(id=job, epoch=epoch) for job, epoch in serving],
            refused=[
                RefusedJob.model_construct(id=job, epoch=epoch, reason=reason)
                for (job, epoch), reason in refused.items()
            ],
            counted=[
                CountedJob.model_construct(id=job, epoch=epoch, chunks=Chunks(**chunks))
                for (job, epoch), chunks in counted.items()
            ],
            unknown=unknown,
        )
        path = f"/servers/{name}/heartbeat"
        answer = self._request("POST", path, body=body, timeout_s=timeout_s, repeat=False)
        return self._read(ServerOrders, answer, "a server's orders")

    def remove_server(self, name: str, instance: int, *, timeout_s: float | None = None) -> None:
        """Say that an aggregation server stops."""
        self._request("DELETE", f"/servers/{name}", params={"instance": instance}, timeout_s=timeout_s)

    def counters(self) -> Counters:
        """The switch's indexed counters that are not zero: name -> port -> count."""
        return self._read(Counters, self._request("GET", "/counters"), "the counters")

    def _authorization(self, job: int | None, token: str | None = None) -> dict[str, str]:
        """The headers of a request: about a job, with a token, or the operator's."""
        secret = token or (self._token if job is None else self._secrets.get(job, self._token))
        return {} if secret is None else {"Authorization": f"Bearer {secret}"}

    def _job(self, method: str, job: int, path: str = "", **options: Any) -> JobStatus:
        document = self._request(method, f"/jobs/{job}{path}", job=job, **options)
        return self._read(JobStatus, document, "a job")

    def _read(self, kind: type[_T], document: Any, what: str) -> _T:
        try:
            return read(kind, document)
        except ValueError as error:
            raise self._wrong_answer(what, str(error)) from error

    def _wrong_answer(self, what: str, instead: str) -> ControllerError:
        return ControllerError(
            f"{self.base_url} answered with something that is not {what} ({instead}). Is it an inagg-controller of the "
            "same version?",
            url=self.base_url,
        )

    def _request(
        self,
        method: str,
        path: str,
        *,
        job: int | None = None,
        body: BaseModel | None = None,
        params: dict[str, Any] | None = None,
        timeout_s: float | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        repeat: bool = True,
        token: str | None = None,
    ) -> Any:
        document = (
            None if body is None else body.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        )

        def attempt(remaining: float) -> httpx.Response:
            timeout = httpx.Timeout(remaining, connect=min(remaining, _CONNECT_TIMEOUT_S))
            sent = {**headers, **self._authorization(job, token)}
            return self._send(method, path, json=document, params=params, headers=sent, timeout=timeout)

        request = f"{method} {path}"
        allowed_s = self.timeout_s if timeout_s is None else timeout_s
        return self._content(self._repeat(attempt, request, allowed_s, repeat), request)

    def _send(self, method: str, path: str, *, timeout: httpx.Timeout, **options: Any) -> httpx.Response:
        """One request; returns when the answer is here. Raises RuntimeError as `_check_open`."""
        self._check_open()
        timeouts = {"timeout": timeout.as_dict()}
        request = httpx.Request(method, self.base_url + path, extensions=timeouts, **options)
        with contextlib.closing(self._transport.handle_request(request)) as response:
            response.request = request
            response.read()
        return response

    def _check_open(self) -> None:
        """Raise RuntimeError once the client has been closed."""
        if self._closed:
            raise RuntimeError("the client has been closed")

    def _repeat(
        self, attempt: Callable[[float], _T], request: str, timeout_s: float, repeat: bool = True
    ) -> _T:
        """Call `attempt` with the seconds that are left, until it returns."""
        reached = time.monotonic()
        deadline = reached + timeout_s
        pause, warned = _FIRST_PAUSE_S, False
        while True:
            try:
                return attempt(max(deadline - time.monotonic(), 0.001))
            except (httpx.RequestError, OSError) as error:
                now = time.monotonic()
                if not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):  # it was sent
                    reached = now
                patience = self.absent_s if _is_refusal(error) else self.timeout_s
                cause, until = str(error) or type(error).__name__, min(deadline, reached + patience)
                if not repeat or now + pause >= until:
                    raise ControllerUnreachableError(
                        url=self.base_url, request=request, cause=cause
                    ) from error
                if not warned and now >= reached + self.timeout_s:
                    warned = True
                    _log.warning(
                        "inagg: no controller takes connections at %s (%s); trying for %.0f s more",
                        *(self.base_url, cause, until - now),
                    )
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _content(self, answer: httpx.Response, request: str) -> Any:
        try:
            document = answer.json() if answer.content else None
        except (ValueError, RecursionError):
            document = None
        if answer.is_success:
            return document
        problem = document if isinstance(document, dict) else {}
        refusal = self._refusal(answer.status_code, problem, request, answer.reason_phrase, answer.text[:200])
        seconds = answer.headers.get("Retry-After", "")
        refusal.retry_after_s = float(seconds) if seconds.isdecimal() else None
        raise refusal

    def _refusal(
        self, status: int, problem: Mapping[str, Any], request: str, title: str, detail: str
    ) -> ControllerRefusedError:
        """The error for a problem document. title, detail: if it has none."""
        kind = ControllerForbiddenError if status in (401, 403) else ControllerRefusedError
        return kind(
            url=self.base_url,
            request=request,
            status=status,
            title=str(problem.get("title", title)),
            detail=str(problem.get("detail", detail)),
            kind=str(problem.get("type", "")).rpartition(":")[2],
        )


def _beat(report: Report) -> Beat:
    beat = Beat.model_construct(begun=report.begun, **dict(report.waits))
    if report.chunks is not None:
        beat = beat.model_copy(update={"chunks": Chunks(**report.chunks)})
    if report.switch_silent:
        beat = beat.model_copy(update={"switch_silent": True})
    if report.traffic is not None:
        beat = beat.model_copy(update={"traffic": report.traffic})
    if report.asked is None:
        return beat
    asked = CallRange(first=report.asked[0], last=report.asked[1])
    return beat.model_copy(update={"asked": asked, "calls": _last_that_fit(report.calls)})


def _last_that_fit(calls: Sequence[tuple[int, str]]) -> list[CallDocument]:
    """The last of the calls that fit into what the controller takes. Earlier calls count as forgotten."""
    room, fitting = _MOST_CALLS_BYTES, []
    for digest, text in reversed(calls):
        fitting.append(CallDocument.model_construct(digest=digest, text=text))
        room -= len(json.dumps(fitting[-1].model_dump())) + 1
        if room < 0:
            break
    return fitting[::-1]
