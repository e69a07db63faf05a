# SPDX-License-Identifier: Apache-2.0
"""GET /live, a page that shows what the controller knows, and GET /overview and /events, from which it knows it.

The page changes nothing. It loads only its own style and script, and asks for the operator's token if that is missing.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from inagg_contract.documents import Overview
from inagg_controller.http.guard import WatcherRoute
from inagg_controller.http.overviews import Overviews

_PAGE = files("inagg_controller") / "live"
_FILES = {
    "/live": ("page.html", "text/html"),
    "/live/page.css": ("page.css", "text/css"),
    "/live/page.js": ("page.js", "text/javascript"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_UNREAD_S = 30.0
_TOKEN = Depends(HTTPBearer(scheme_name="operator's token for more than health", auto_error=False))


def add_live_page(app: FastAPI) -> None:
    """Serve the page and its files."""
    for path, (name, kind) in _FILES.items():
        app.add_route(path, _serving((_PAGE / name).read_bytes(), kind), include_in_schema=False)


def _serving(body: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def serve(_: Request) -> Response:
        return Response(body, media_type=kind, headers=_HEADERS)

    return serve


class _Events(EventSourceResponse):
    """The overviews of each second, for a client that counts as a listener meanwhile. Raises UnavailableError."""

    def __init__(self, overviews: Overviews, operators: bool) -> None:
        super().__init__(_events(overviews, operators), send_timeout=_UNREAD_S)
        self._overviews = overviews
        self._operators = operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See EventSourceResponse."""
        with self._overviews.listening(operators=self._operators):
            await super().__call__(scope, receive, send)


async def _events(overviews: Overviews, operators: bool) -> AsyncIterator[dict[str, str]]:
    async for text in overviews.each_second(operators=operators):
        yield {"event": "overview", "data": text}


def overview_router(overviews: Overviews) -> APIRouter:
    """The routes of /overview and /events."""
    router = APIRouter(route_class=WatcherRoute, dependencies=[_TOKEN])

    @router.get("/overview", response_model=Overview)
    async def overview(request: Request) -> Response:
        """Switches, links, jobs, ranks, slots and the log in one document, as of the last second. Without the
        operator's token only what GET /health answers."""
        found = await overviews.latest(operators=request.app.state.gate.is_operator(request))
        return Response(found.text(), media_type="application/json")

    @router.get("/events", response_class=EventSourceResponse)
    async def events(request: Request) -> EventSourceResponse:
        """The same once a second, as server-sent events of the type `overview`, for as long as the client listens. The
        log of each event has the lines since the one before. The page at `/live` shows them. At most 64 clients listen
        with the operator's token, and 32 without it."""
        return _Events(overviews, request.app.state.gate.is_operator(request))

    return router
