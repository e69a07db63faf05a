# SPDX-License-Identifier: Apache-2.0
"""Route classes that check the client's secret and limit the body, before the body is read.

    OpenRoute      needs no secret
    WatcherRoute   needs no secret, but with the operator's token the answer has more
    CreatorRoute   needs the token of a tenant, or the operator's, if the controller has tenants
    JobRoute       needs the secret of the job in the path, or the operator's token
    OperatorRoute  needs the operator's token

A secret is sent as "Authorization: Bearer SECRET" (RFC 6750).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from ipaddress import IPv6Address, IPv6Network
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import Message

from inagg_contract.addresses import parse_source
from inagg_contract.documents import MOST_BODY_BYTES
from inagg_controller.errors import (
    BodiesError,
    BodyTimeoutError,
    BodyTooLargeError,
    ForbiddenError,
    UnauthorizedError,
    UnknownJobError,
)
from inagg_controller.http.rates import Rates
from inagg_controller.jobs.job import Job
from inagg_controller.jobs.tenants import Tenant, Tenants
from inagg_controller.tokens import same

_log = logging.getLogger(__name__)

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_BODY_BYTES = 1 << 17
_BODY_S = 10.0
# Of all bodies at a time.
_ALL_BYTES = 1 << 27
_HOST_BYTES = 1 << 25
_JOB_DIGITS = 5


class Gate:
    """Checks secrets. job: finds a job by its number, or raises UnknownJobError. tenants: who may create jobs.

    rates: of the tenants' requests.
    """

    def __init__(self, operators_token: str, job: Callable[[int], Job], tenants: Tenants) -> None:
        self.rates = Rates()
        self._operators_token = operators_token
        self._job = job
        self._tenants = tenants
        self._warned = False

    def admit_operator(self, request: Request) -> None:
        """Raise UnauthorizedError or ForbiddenError unless the request has the operator's token."""
        presented = _presented(request, "the operator's token, which is in the controller's --token-file")
        if not same(presented, self._operators_token):
            raise ForbiddenError(
                "this is not the operator's token, which is in the controller's --token-file"
            )

    def is_operator(self, request: Request) -> bool:
        """Whether a request that needs no secret has the operator's token."""
        return same(_bearer(request), self._operators_token)

    def tenant_of(self, request: Request) -> Tenant | None:
        """Who creates a job; None: the operator, or anybody if there are no tenants.

        Raises UnauthorizedError or ForbiddenError.
        """
        if not self._tenants or self.is_operator(request):
            return None
        presented = _presented(request, "the token of a tenant (controller_token, INAGG_CONTROLLER_TOKEN)")
        tenant = self._tenants.find(presented)
        if tenant is None:
            raise ForbiddenError(
                "this is not the token of a tenant of this controller, which the operator gives; see "
                "controller_token (INAGG_CONTROLLER_TOKEN, INAGG_CONTROLLER_TOKEN_FILE)"
            )
        return tenant

    def admit_creator(self, request: Request) -> None:
        """Raise UnauthorizedError, ForbiddenError or RateError unless the request may create a job."""
        tenant = self.tenant_of(request)
        if tenant is not None:
            self._warn_if_readable(request, tenant)
            self.rates.take_request(tenant)

    def _warn_if_readable(self, request: Request, tenant: Tenant) -> None:
        """Log once that a token has come over a network without TLS."""
        if self._warned or request.url.scheme == "https" or _is_here(request):
            return
        self._warned = True
        _log.warning(
            "the token of the tenant %s has come from %s without TLS, so who reads that traffic can use it: give "
            "the controller --tls-cert and --tls-key (inagg-controller certificates)",
            tenant.name,
            host_of(request.client),
        )

    def admit_member(self, request: Request) -> None:
        """Raise UnauthorizedError, UnknownJobError or ForbiddenError unless the request may access the path's job."""
        presented = _presented(request, "the job's secret, which the answer to POST /jobs contains")
        self.check(request.path_params["number"], presented)

    def check(self, job: str, presented: str) -> None:
        """Raise UnknownJobError or ForbiddenError unless a secret permits access to a job. job: its number, as text."""
        if same(presented, self._operators_token):
            return
        number = _number(job)
        if not same(presented, self._job(number).secret):
            raise ForbiddenError(
                f"this is not the secret of job {number}, which the answer to POST /jobs contains; the controller may "
                "have restarted since"
            )


def _is_here(request: Request) -> bool:
    """Whether a request comes from this machine, over the loopback interface."""
    try:
        return request.client is None or parse_source(request.client[0]).is_loopback
    except ValueError:
        return False


def host_of(client: tuple[str, int] | None) -> str:
    """The host of a client, for limits: its IPv4 address, or its IPv6 network, in which it can choose any address."""
    host = "" if client is None else client[0]
    try:
        address = parse_source(host)
    except ValueError:
        return host
    return str(IPv6Network((address, 64), strict=False)) if isinstance(address, IPv6Address) else str(address)


class Bodies:
    """Counts the bytes of bodies of requests and answers under way, by host. most, per_host: maximum numbers.

    One body may have more than per_host if its host has no other.
    """

    def __init__(self, most: int = _ALL_BYTES, per_host: int = _HOST_BYTES) -> None:
        self._most = most
        self._per_host = per_host
        self._held: Counter[str] = Counter()
        self._total = 0

    @contextmanager
    def room(self, host: str) -> Iterator[Callable[[int], None]]:
        """Yields a function that counts more bytes of one body, or raises BodiesError."""
        held = 0

        def take(size: int) -> None:
            nonlocal held
            if self._held[host] > held and self._held[host] + size > self._per_host:
                raise BodiesError(f"of {host}", self._per_host)
            if self._total + size > self._most:
                raise BodiesError("of all hosts", self._most)
            self._held[host] += size
            self._total += size
            held += size

        try:
            yield take
        finally:
            self._held[host] -= held
            self._total -= held
            if not self._held[host]:
                del self._held[host]


def _bearer(request: Request) -> str:
    """The request's secret; empty if it has none."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _presented(request: Request, wanted: str) -> str:
    secret = _bearer(request)
    if not secret:
        raise UnauthorizedError(
            f"{request.method} {request.url.path} needs {wanted}, as Authorization: Bearer SECRET"
        )
    return secret


def _number(text: str) -> int:
    """Parse a job's number. Strict: a text that fails here must not be a number to the route's handler either."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _JOB_DIGITS):
        raise UnknownJobError(f"there is no job {text[:40]!r}")
    return int(text)


class OpenRoute(APIRoute):
    """A route that needs no secret."""

    body_bytes = _BODY_BYTES

    def admit(self, gate: Gate, request: Request) -> None:
        """Raise a RequestError if the request lacks the secret that it needs."""

    def get_route_handler(self) -> _Handler:
        """FastAPI's handler, called after the checks."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            self.admit(request.app.state.gate, request)
            with request.app.state.bodies.room(host_of(request.client)) as take:
                try:
                    bounded = await self._bounded(request, take)
                except ClientDisconnect:
                    return Response(status_code=HTTPStatus.BAD_REQUEST)  # the client is gone
                return await handle(bounded)

        return guarded

    async def _bounded(self, request: Request, take: Callable[[int], None]) -> Request:
        """The request with its body read, unless the handler reads the body itself. take: counts its bytes."""
        if self.body_field is None:
            return request
        if int(request.headers.get("content-length", 0)) > self.body_bytes:
            raise BodyTooLargeError(self.body_bytes)
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_S):
                async for piece in request.stream():
                    if len(body) + len(piece) > self.body_bytes:
                        raise BodyTooLargeError(self.body_bytes)
                    take(len(piece))
                    body += piece
        except TimeoutError:
            raise BodyTimeoutError(_BODY_S) from None

        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def receive() -> Message:
            return whole.pop() if whole else await request.receive()

        return Request(request.scope, receive)


class WatcherRoute(OpenRoute):
    """A route that answers more to the operator. A wrong token is refused."""

    def admit(self, gate: Gate, request: Request) -> None:
        """See OpenRoute."""
        if _bearer(request):
            gate.admit_operator(request)


class CreatorRoute(OpenRoute):
    """A route that needs a tenant's token, or the operator's, if the controller has tenants."""

    def admit(self, gate: Gate, request: Request) -> None:
        """See OpenRoute."""
        gate.admit_creator(request)


class JobRoute(OpenRoute):
    """A route that needs the job's secret. {number} in the path is the job's number."""

    body_bytes = MOST_BODY_BYTES

    def admit(self, gate: Gate, request: Request) -> None:
        """See OpenRoute."""
        gate.admit_member(request)


class OperatorRoute(OpenRoute):
    """A route that needs the operator's token."""

    body_bytes = MOST_BODY_BYTES  # a server's heartbeat lists thousands of jobs

    def admit(self, gate: Gate, request: Request) -> None:
        """See OpenRoute."""
        gate.admit_operator(request)
