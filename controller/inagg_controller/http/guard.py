# SPDX-License-Identifier: Apache-2.0
"""Who may make a request, and how large it may be: both are settled before its body is read.

    OpenRoute      anybody
    JobRoute       who has the secret of the job in the path, or the operator's token
    OperatorRoute  who has the operator's token

A secret comes as "Authorization: Bearer SECRET" (RFC 6750).
"""

import asyncio
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.types import Message

from inagg_contract.documents import MOST_BODY_BYTES
from inagg_controller.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    ForbiddenError,
    UnauthorizedError,
    UnknownJobError,
)
from inagg_controller.jobs.job import Job
from inagg_controller.tokens import same

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_BODY_BYTES = 1 << 16
_BODY_S = 10.0
_JOB_DIGITS = 5


class Gate:
    """Knows the secrets. job: finds a job by its number, or raises UnknownJobError."""

    def __init__(self, operators_token: str, job: Callable[[int], Job]) -> None:
        self._operators_token = operators_token
        self._job = job

    def admit_operator(self, request: Request) -> None:
        """Raises UnauthorizedError or ForbiddenError unless this is the operator."""
        presented = _presented(request, "the operator's token, which is in the controller's --token-file")
        if not same(presented, self._operators_token):
            raise ForbiddenError(
                "this is not the operator's token, which is in the controller's --token-file"
            )

    def is_operator(self, request: Request) -> bool:
        """Whether a request that anybody may make comes from the operator."""
        return same(_bearer(request), self._operators_token)

    def admit_member(self, request: Request) -> None:
        """Raises UnauthorizedError, UnknownJobError or ForbiddenError unless this may deal with the path's job."""
        presented = _presented(request, "the job's secret, which the answer to POST /jobs has")
        if same(presented, self._operators_token):
            return
        number = _number(request.path_params["number"])
        if not same(presented, self._job(number).secret):
            raise ForbiddenError(
                f"this is not the secret of job {number}, which the answer to POST /jobs has; the controller may have "
                "restarted since"
            )


def _bearer(request: Request) -> str:
    """The secret that a request has; empty if it has none."""
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
    """Of a job. As strict as can be: what passes here unread must be nothing that a handler reads as a number."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _JOB_DIGITS):
        raise UnknownJobError(f"there is no job {text[:40]!r}")
    return int(text)


class OpenRoute(APIRoute):
    """See the module's text."""

    body_bytes = _BODY_BYTES

    def admit(self, gate: Gate, request: Request) -> None:
        """Raises a RequestError if this may not be."""

    def get_route_handler(self) -> _Handler:
        """FastAPI's handler behind the checks."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            self.admit(request.app.state.gate, request)
            try:
                bounded = await self._bounded(request)
            except ClientDisconnect:
                return Response(status_code=HTTPStatus.BAD_REQUEST)  # that nobody reads
            return await handle(bounded)

        return guarded

    async def _bounded(self, request: Request) -> Request:
        """The request with its body, as far as the handler wants one read for it."""
        if self.body_field is None:
            return request
        if int(request.headers.get("content-length", 0)) > self.body_bytes:
            raise BodyTooLargeError(self.body_bytes)
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_S):
                async for piece in request.stream():
                    body += piece
                    if len(body) > self.body_bytes:
                        raise BodyTooLargeError(self.body_bytes)
        except TimeoutError:
            raise BodyTimeoutError(_BODY_S) from None

        async def receive() -> Message:
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return Request(request.scope, receive)


class JobRoute(OpenRoute):
    """See the module's text. {number} in the path is the job's."""

    body_bytes = MOST_BODY_BYTES

    def admit(self, gate: Gate, request: Request) -> None:
        """See OpenRoute."""
        gate.admit_member(request)


class OperatorRoute(OpenRoute):
    """See the module's text."""

    def admit(self, gate: Gate, request: Request) -> None:
        """See OpenRoute."""
        gate.admit_operator(request)
