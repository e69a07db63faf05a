# SPDX-License-Identifier: Apache-2.0
"""Sees which ranks' processes end while a group is made: the kernel closes the connections of a process that ends.

Every rank listens, and publishes its address. Rank 0 connects to all others, and says through the store which of them
have ended. The others connect to rank 0, whose process often has the store. The kernel accepts and answers for a
process that is busy or stopped, so it does not look ended. A stopped process (SIGSTOP) counts as a slow one.

If the network breaks, nothing is closed. Then the kernel's probes notice it, on these connections and on those of the
store's client, which would wait for ever.
"""

import contextlib
import errno
import json
import select
import socket
import struct

from torch.distributed.distributed_c10d import PrefixStore, Store

from inagg.membership.sockets import ending_in_silence, tcp_sockets

# A host that leaves data or probes unanswered for this time counts as cut off.
_SILENT_S = 4.0
# A store that does not answer for this time counts as stopped, if its host answers.
_STOPPED_S = 60.0
_CUT_OFF = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


class Watch:
    """One rank's listener and connections.

    Args:
        store: keys that only the ranks of this group share.
        rank, size: this process's rank, and the number of ranks.
        ip: this host's address, at which the other ranks reach it.
    """

    def __init__(self, store: Store, rank: int, size: int, ip: str) -> None:
        self._store = store
        self._listener = socket.create_server((ip, 0), family=_family(ip), backlog=size)
        self._unseen = {*range(1, size)} if rank == 0 else {0}
        self._seen: dict[int, tuple[int, socket.socket]] = {}  # by descriptor
        self._addresses: dict[int, str] = {}
        self._cut_off: dict[int, str] = {}
        _bound_waits(store, _SILENT_S, _STOPPED_S)
        store.set(f"watch/{rank}", json.dumps(self._listener.getsockname()))

    def look_out(self) -> None:
        """Connect to the ranks that have begun to listen."""
        for rank in sorted(self._unseen):
            if self._store.check([key := f"watch/{rank}"]):
                address = tuple(json.loads(self._store.get(key)))
                connection = _call(address)
                self._seen[connection.fileno()] = rank, connection
                self._addresses[rank] = address[0]
                self._unseen.remove(rank)

    def ended(self) -> tuple[int, ...]:
        """The ranks whose processes have ended. Does not use the store."""
        look = select.poll()
        for descriptor in self._seen:
            look.register(descriptor, select.POLLRDHUP)
        return tuple(sorted(self._seen[descriptor][0] for descriptor, _ in look.poll(0)))

    def cut_off(self) -> dict[int, str]:
        """The ranks that the network does not reach any more, with their addresses. Does not use the store."""
        for rank, connection in self._seen.values():
            # The kernel clears the error when it is read.
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _CUT_OFF:
                self._cut_off[rank] = self._addresses[rank]
        return self._cut_off

    def close(self) -> None:
        """Close the connections. Other ranks then see this process as ended. Closing twice changes nothing."""
        self._listener.close()
        for _, connection in self._seen.values():
            connection.close()
        self._seen.clear()
        _bound_waits(self._store, 0, 0)


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
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    port = getattr(store, "port", None)
    if port is None:  # not a TCPStore
        return
    for tcp in tcp_sockets():
        with contextlib.suppress(OSError):  # not connected
            if tcp.getpeername()[1] == port:
                _bound_silence(tcp, silent_s)
                _bound_answers(tcp, stopped_s)
