# SPDX-License-Identifier: Apache-2.0
"""Limits the number of connections to the API, and the time that a connection may be idle.

uvicorn limits neither: connections that never send a complete request would stay forever and exhaust the process's file
descriptors.
"""

import asyncio
import json
import logging
import resource
import time
from collections import Counter
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_log = logging.getLogger(__name__)

_MOST = 1 << 14
_OTHER_FILES = 64
_REPORT_S = 60.0

_HEAD = "HTTP/1.1 {} {}\r\nConnection: close\r\nContent-Type: application/problem+json\r\n\r\n"


def _refusal(status: HTTPStatus, kind: str, title: str, detail: str) -> bytes:
    """A whole answer to a connection that gets no further."""
    problem = {"type": f"urn:inagg:{kind}", "title": title, "status": status, "detail": detail}
    return (_HEAD.format(status.value, status.phrase) + json.dumps(problem)).encode()


_TOO_MANY = _refusal(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "unavailable",
    "Unavailable",
    "too many connections, from this host or in all; see --connections-per-host of inagg-controller",
)
_NOT_HTTP = _refusal(
    HTTPStatus.BAD_REQUEST,
    "invalid-request",
    "Invalid request",
    "this is not a request of HTTP/1.1; an inagg-controller speaks HTTPS if it has --tls-cert",
)


def open_file_limit() -> int:
    """Raise this process's limit of open files as far as permitted; return how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST + _OTHER_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST + _OTHER_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return _MOST if soft == resource.RLIM_INFINITY else min(_MOST, soft - _OTHER_FILES)


class Connections:
    """Counts the open connections by host and decides whether to accept another.

    most, per_host: maximum numbers. idle_s: how long a connection may be open without a request in progress, or without
    its client reading the answer.
    """

    def __init__(self, *, most: int, per_host: int, idle_s: float) -> None:
        self.idle_s = idle_s
        self.refused = 0
        self.not_http = 0
        self._next_report = 0.0
        self._most = most
        self._per_host = per_host
        self._open: Counter[str] = Counter()
        self._warned: set[str] = set()

    @property
    def open(self) -> int:
        """Number of open connections."""
        return self._open.total()

    def take(self, host: str) -> bool:
        """Count one more connection from a host; return False if the limits do not permit it."""
        if self._open[host] < self._per_host and self.open < self._most:
            self._open[host] += 1
            return True
        self.refused += 1
        if host not in self._warned and len(self._warned) < self._most:
            self._warned.add(host)
            _log.warning(
                "refusing connections from %s, which has %d of %d open ones",
                host,
                self._open[host],
                self.open,
            )
        return False

    def count_not_http(self, host: str) -> None:
        """Count what a host has sent that is not a request of HTTP/1.1. Logs one a minute."""
        self.not_http += 1
        now = time.monotonic()
        if now >= self._next_report:
            self._next_report = now + _REPORT_S
            _log.warning(
                "%s has sent something that is not a request of HTTP/1.1, the %dth in all: answered with 400",
                host,
                self.not_http,
            )

    def give_back(self, host: str) -> None:
        """Count the end of a connection for which take() returned True."""
        self._open[host] -= 1
        if self._open[host] == 0:
            del self._open[host]
            self._warned.discard(host)
        if not self._open:
            self._warned.clear()


def _is_wanted(record: logging.LogRecord) -> bool:
    """False for uvicorn's line for each request that is not HTTP."""
    return record.msg != "Invalid HTTP request received."


def limited_protocol(connections: Connections) -> type[H11Protocol]:
    """uvicorn's HTTP/1.1 protocol class with the limits of `connections`."""
    logging.getLogger("uvicorn.error").addFilter(_is_wanted)

    class LimitedProtocol(H11Protocol):
        """One connection."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._host: str | None = None
            self._idle: asyncio.TimerHandle | None = None
            self._unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Accept the connection, or answer 503 and close it."""
            super().connection_made(transport)
            host = self.client[0] if self.client else ""
            if connections.take(host):
                self._host = host
                self._await_request()
            else:
                transport.write(_TOO_MANY)
                transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            """Count the end of the connection."""
            super().connection_lost(exc)
            for timer in (self._idle, self._unread):
                if timer is not None:
                    timer.cancel()
            if self._host is not None:
                connections.give_back(self._host)
                self._host = None

        def on_response_complete(self) -> None:
            """Wait for the next request."""
            super().on_response_complete()
            self._await_request()

        def pause_writing(self) -> None:
            """Wait for the client to read."""
            super().pause_writing()
            self._unread = self.loop.call_later(connections.idle_s, self.transport.abort)

        def resume_writing(self) -> None:
            """Go on sending."""
            super().resume_writing()
            if self._unread is not None:
                self._unread.cancel()

        def send_400_response(self, msg: str) -> None:
            """Answer what is not HTTP."""
            connections.count_not_http(self._host or "")
            self.transport.write(_NOT_HTTP)
            self.transport.close()

        def _unsupported_upgrade_warning(self) -> None:
            """Log nothing: upgrades are ignored (RFC 9110, 7.8), whether websockets is installed or not."""

        def _await_request(self) -> None:
            if self._idle is not None:
                self._idle.cancel()
            self._idle = self.loop.call_later(connections.idle_s, self._end_if_idle)

        def _end_if_idle(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.abort()

    return LimitedProtocol
