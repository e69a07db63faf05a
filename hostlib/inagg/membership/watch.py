# SPDX-License-Identifier: Apache-2.0
"""Sees which ranks' processes end or stop while a group is made.

Every rank listens, and publishes its address. Rank 0 connects to all others, and says through the store which of them
are lost. The others connect to rank 0, whose process often has the store.

| what happens | how it is seen |
|---|---|
| a process ends | its kernel closes its connections |
| a process is stopped (SIGSTOP) | its kernel keeps the connections, but no beats come |
| the network breaks | nothing comes: the kernel's probes see it, also on the connections of the store's client |

A thread of the core accepts connections and beats on them, so a process that is busy with Python's GIL held beats too.
"""

import contextlib
import errno
import json
import select
import socket
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass

from torch.distributed.distributed_c10d import Store

from inagg._core import Pulse
from inagg.membership.sockets import ending_in_silence, tcp_sockets
from inagg.membership.store import server_of, value_of
from inagg_contract.ranks import place

# A host that leaves data or probes unanswered for this time counts as cut off.
_SILENT_S = 4.0
# A process that does not beat for this time counts as stopped.
_STOPPED_S = 8.0
# A store that does not answer for this time counts as stopped, if its host answers. Then rank 0 has some time to beat.
_STORE_STOPPED_S = 6.0
_CUT_OFF = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)

_BEAT, _BEAT_S = b".", 0.5
_MOST_BYTES = 1 << 16
# If more time passes between two looks, this process did something else, or was stopped itself.
_LONGEST_LOOK_S = 1.5
_LOOK_S = 0.01


@dataclass(slots=True)
class _Rank:
    """A rank that is watched. silence: seconds, while this process looked."""

    rank: int
    ip: str
    host: str
    connection: socket.socket
    silence: float = 0.0


class Watch:
    """One rank's listener and connections.

    Args:
        store: keys that only the ranks of this group share.
        rank, size: this process's rank, and the number of ranks.
        ip: this host's address, at which the other ranks reach it.
        host: its name, for messages.
    """

    def __init__(self, store: Store, rank: int, size: int, ip: str, host: str = "") -> None:
        self._store = store
        self._listener = socket.create_server((ip, 0), family=_family(ip), backlog=size)
        self._listener.setblocking(False)
        self._pulse = Pulse(socket_fd=self._listener.fileno(), beat=_BEAT, interval_s=_BEAT_S)
        self._unseen = {*range(1, size)} if rank == 0 else {0}
        self._seen: dict[int, _Rank] = {}  # by descriptor
        self._cut_off: dict[int, str] = {}
        self._looked = time.monotonic()
        _bound_waits(store, _SILENT_S, _STORE_STOPPED_S)
        store.set(listener_of(rank), json.dumps([*self._listener.getsockname()[:2], host]))

    @property
    def places(self) -> dict[int, str]:
        """Where the ranks are that this one watches: "h2, 10.0.0.2", by rank."""
        return {seen.rank: place(seen.host, seen.ip) for seen in self._seen.values()}

    def look_out(self) -> None:
        """Connect to the ranks that have begun to listen."""
        for rank in sorted(self._unseen):
            if self._store.check([key := listener_of(rank)]):
                ip, port, host = json.loads(value_of(self._store, key))
                connection = _call((ip, port))
                self._seen[connection.fileno()] = _Rank(rank, ip, host, connection)
                self._unseen.remove(rank)

    def ended(self) -> tuple[int, ...]:
        """The ranks whose processes have ended. Does not use the store."""
        look = select.poll()
        for descriptor in self._seen:
            look.register(descriptor, select.POLLRDHUP)
        return tuple(sorted(self._seen[descriptor].rank for descriptor, _ in look.poll(0)))

    def stopped(self) -> tuple[int, ...]:
        """The ranks that have not beaten for _STOPPED_S. Call it repeatedly. Does not use the store."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, _LONGEST_LOOK_S), now
        heard = self._hear()
        for seen in self._seen.values():
            seen.silence = 0.0 if seen.rank in heard else seen.silence + passed
        return tuple(sorted(seen.rank for seen in self._seen.values() if seen.silence >= _STOPPED_S))

    def unheard(self, patience_s: float) -> tuple[int, ...]:
        """Wait until each rank has beaten once more, for at most `patience_s`. Returns those that have not, and live.

        Does not use the store.
        """
        self._hear()  # of the past
        end = time.monotonic() + patience_s
        waiting = {seen.rank for seen in self._seen.values()}
        while waiting and time.monotonic() < end:
            time.sleep(_LOOK_S)
            waiting -= {*self._hear(), *self.ended()}
        return tuple(sorted(waiting))

    def cut_off(self) -> dict[int, str]:
        """The ranks that the network does not reach any more, with their addresses. Does not use the store."""
        for seen in self._seen.values():
            # The kernel clears the error when it is read.
            self._note(seen, seen.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        return self._cut_off

    def close(self) -> None:
        """Close the connections. Other ranks then see this process as ended. Closing twice changes nothing."""
        self._pulse.close()
        self._listener.close()
        for seen in self._seen.values():
            seen.connection.close()
        self._seen.clear()
        _bound_waits(self._store, 0, 0)

    def _hear(self) -> Collection[int]:
        """Read the beats that have come. Returns the ranks that have sent some."""
        heard = set()
        for seen in self._seen.values():
            try:
                if seen.connection.recv(_MOST_BYTES, socket.MSG_DONTWAIT):
                    heard.add(seen.rank)
            except OSError as error:
                self._note(seen, error.errno)
        return heard

    def _note(self, seen: _Rank, error: int | None) -> None:
        if error in _CUT_OFF:
            self._cut_off[seen.rank] = seen.ip


def listener_of(rank: int) -> str:
    """The key in the store for the address at which a rank listens."""
    return f"watch/{rank}"


def _family(ip: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def _call(address: tuple[str, int]) -> socket.socket:
    """Begin to connect. If nobody listens at the address, the connection ends at once."""
    connection = socket.socket(_family(address[0]), socket.SOCK_STREAM)
    connection.setblocking(False)
    for option in ending_in_silence(_SILENT_S):
        connection.setsockopt(*option)
    with contextlib.suppress(OSError):  # `ended` finds it
        connection.connect(address)
    return connection


def _bound_answers(tcp: socket.socket, seconds: float) -> None:
    """Limit each wait for the other process to `seconds`; 0: no limit."""
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(seconds), 0))


def _bound_silence(tcp: socket.socket, seconds: float) -> None:
    """End the connection when the other host leaves data or probes unanswered for `seconds`; 0: kernel's default."""
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


def _bound_waits(store: Store, silent_s: float, stopped_s: float) -> None:
    """Apply both limits to the connections of torch's store client to its server, if the store has one."""
    server = server_of(store)
    if server is None:
        return
    for tcp in tcp_sockets():
        with contextlib.suppress(OSError):  # not connected
            if tcp.getpeername()[1] == server.port:
                _bound_silence(tcp, silent_s)
                _bound_answers(tcp, stopped_s)


def address_of_server(store: Store) -> str:
    """Where the process is that serves a store: "10.0.0.1:29500"; empty without one."""
    server = server_of(store)
    return "" if server is None else f"{server.host}:{server.port}"
