# SPDX-License-Identifier: Apache-2.0
"""How many connections the API takes, and how long it waits for a request on one.

uvicorn bounds neither: a connection that never sends a whole request stays for ever, and the processes' file
descriptors run out.
"""

import asyncio
import logging
import resource
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_log = logging.getLogger(__name__)

_MOST = 1 << 14
_OTHER_FILES = 64

_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/problem+json\r\n\r\n"
    b'{"type": "urn:inagg:unavailable", "title": "Unavailable", "status": 503, "detail": '
    b'"too many connections, from this host or in all; see --connections-per-host of inagg-controller"}'
)


def open_file_limit() -> int:
    """Raise this process's limit of open files as far as it may; returns how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST + _OTHER_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST + _OTHER_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return _MOST if soft == resource.RLIM_INFINITY else min(_MOST, soft - _OTHER_FILES)


class Connections:
    """The connections that are open, by host, and what is refused.

    most, per_host: how many there may be. idle_s: how long one may be open without a request under way.
    """

    def __init__(self, *, most: int, per_host: int, idle_s: float) -> None:
        self.idle_s = idle_s
        self.refused = 0
        self._most = most
        self._per_host = per_host
        self._open: Counter[str] = Counter()
        self._warned: set[str] = set()

    @property
    def open(self) -> int:
        """How many there are."""
        return self._open.total()

    def take(self, host: str) -> bool:
        """One more from a host; False: there are enough."""
        if self._open[host] < self._per_host and self.open < self._most:
            self._open[host] += 1
            return True
        self.refused += 1
        if host not in self._warned:
            self._warned.add(host)
            _log.warning(
                "refusing connections from %s, which has %d of %d", host, self._open[host], self.open
            )
        return False

    def give_back(self, host: str) -> None:
        """One that was taken has ended."""
        self._open[host] -= 1
        if self._open[host] == 0:
            del self._open[host]
            self._warned.discard(host)


def limited_protocol(connections: Connections) -> type[H11Protocol]:
    """uvicorn's HTTP/1.1 with these limits."""

    class LimitedProtocol(H11Protocol):
        """One connection."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._host: str | None = None
            self._idle: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Take it, or say why not."""
            super().connection_made(transport)
            host = self.client[0] if self.client else ""
            if connections.take(host):
                self._host = host
                self._await_request()
            else:
                transport.write(_REFUSAL)
                transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            """It has ended."""
            super().connection_lost(exc)
            if self._idle is not None:
                self._idle.cancel()
            if self._host is not None:
                connections.give_back(self._host)
                self._host = None

        def on_response_complete(self) -> None:
            """A request is done, the next may come."""
            super().on_response_complete()
            self._await_request()

        def _unsupported_upgrade_warning(self) -> None:
            """An upgrade that a client asks for is ignored (RFC 9110, 7.8), websockets installed or not."""

        def _await_request(self) -> None:
            if self._idle is not None:
                self._idle.cancel()
            self._idle = self.loop.call_later(connections.idle_s, self._end_if_idle)

        def _end_if_idle(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.abort()

    return LimitedProtocol
