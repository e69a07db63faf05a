# SPDX-License-Identifier: Apache-2.0
"""Limits the answers that clients have not read yet. uvicorn keeps all that is sent, however large it is."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inagg_controller.errors import BodiesError
from inagg_controller.http.guard import Bodies, host_of

_PIECE = 1 << 16


class BoundedAnswers:
    """Sends large answers in pieces, as the client reads them. They count as bodies of its host until they are sent.

    Answers to the operator do not count.
    """

    def __init__(self, app: ASGIApp, bodies: Bodies, refuse: Callable[[BodiesError], Response]) -> None:
        """refuse: makes the answer in place of one for which there is no room."""
        self._app = app
        self._bodies = bodies
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        begun: list[Message] = []

        async def send_bounded(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.append(message)  # until it is known whether there is room for the body
                return
            body = message.get("body", b"")
            with self._bodies.room(host_of(scope["client"])) as take:
                try:
                    take(len(body) if len(body) > _PIECE and not _to_operator(scope) else 0)
                except BodiesError as error:
                    await self._refuse(error)(scope, receive, send)
                    return
                while begun:
                    await send(begun.pop())
                for place in range(0, max(len(body), 1), _PIECE):
                    more = message.get("more_body", False) or place + _PIECE < len(body)
                    await send({**message, "body": body[place : place + _PIECE], "more_body": more})

        await self._app(scope, receive, send_bounded)


def _to_operator(scope: Scope) -> bool:
    request = Request(scope)
    operators: bool = request.app.state.gate.is_operator(request)
    return operators
