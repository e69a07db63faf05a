# SPDX-License-Identifier: Apache-2.0
"""Breaks off the TCP connections of a gloo group, because gloo offers no way to end a collective under way.

Gloo connects every two ranks when a group is made: one rank connects to the port at which the other's device listens.
A device has a port for all its groups, but only one of them connects at a time (`devices`). So a connection belongs to
the group if it has appeared while the group was made, and one of its ends is such a port of one of the ranks.
"""

import contextlib
import math
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

from inagg.inner.devices import Devices
from inagg.membership.assembly import Assembly
from inagg.membership.sockets import TCP_THIN_LINEAR_TIMEOUTS, tcp_sockets

# linux/tcp.h: tcpi_bytes_acked and tcpi_bytes_received of struct tcp_info.
_CARRIED, _CARRIED_AT = struct.Struct("QQ"), 120
# tcpi_last_ack_recv: milliseconds since the other kernel has acknowledged something.
_SILENCE, _SILENCE_AT = struct.Struct("I"), 56
# tcpi_rtt: the smoothed round-trip time, in microseconds.
_RTT, _RTT_AT = struct.Struct("I"), 68
_ESTABLISHED = 1  # tcpi_state, the first byte: the other process has not closed the connection

# Without this a connection on which nothing is sent is silent. So many probes in a row may stay unanswered, some
# minutes, before the kernel ends the connection: groups without a job have no other watch.
_PROBING = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 100),
    (socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1),
)
_LOOK_S = 1.0

_Ends = tuple[Any, Any]  # a connection's own address, and its peer's


class GlooConnections:
    """The connections of one gloo group.

    Args:
        address: of this host, for the devices (`Devices.lend`).
        make: makes the group with the devices, once all ranks have theirs.
        ranks: the ranks that make the group.
    """

    def __init__(self, address: str | None, make: Callable[[list[Any]], Any], ranks: Assembly) -> None:
        self._devices: Devices | None = Devices.lend(address)
        try:
            own = self._devices.listeners
            for ip, _ in own[:1]:  # an address in the network that gloo uses
                ranks.watch(ip)
            # Wait for all ranks here: gloo's constructor would not notice signals, or ranks that fail.
            by_rank = ranks.exchange("listening", own)
            listening = {(ip, port) for each in by_rank for ip, port in each}
            self._ip_of = {rank: ip for rank, each in enumerate(by_rank) for ip, _ in each}
            ranks.check()  # connects to all ranks, so that it sees them end
            before = {ends for _, ends in _connections()}
            self.group: Any = make(self._devices.devices)
            self._ends = {
                ends for _, ends in _connections() if ends not in before and listening.intersection(ends)
            }
            self._peers = self._find_peers(ranks)
            for tcp in self._connected():
                for option in _PROBING:
                    tcp.setsockopt(*option)
            _groups.add(self)
        except BaseException:
            self.close()
            raise
        ranks.break_off = self.break_off

    def all_connected(self) -> None:
        """Let another group connect with the devices. To be called when all ranks have connected."""
        if self._devices is not None:
            self._devices.connected()

    def close(self) -> None:
        """Give the devices back. Closing twice changes nothing."""
        self.group = None
        _groups.discard(self)
        devices, self._devices = self._devices, None
        if devices is not None:
            devices.give_back()

    def break_off(self) -> None:
        """Shut the connections down. Collectives under way and later ones fail, at both ends."""
        for tcp in self._connected():
            with contextlib.suppress(OSError):  # it has just ended
                tcp.shutdown(socket.SHUT_RDWR)

    def carried(self) -> int:
        """Bytes that the connections have carried so far, in both directions."""
        return sum(sum(_CARRIED.unpack_from(_info(tcp), _CARRIED_AT)) for tcp in self._connected())

    def silent(self, seconds: float) -> dict[int, str]:
        """The ranks whose hosts have acknowledged nothing for so long, with their addresses. Call it repeatedly.

        A kernel acknowledges the probes of another one whatever the process does.
        """
        silence = _look.silence()
        return {rank: ip for rank, ip in self._ip_of.items() if silence.get(ip, 0.0) >= seconds}

    def ended(self) -> Sequence[int]:
        """The ranks whose processes have ended their connections to this one. Call it repeatedly."""
        there = self._ends & _look.established()
        living = {self._peers.get(ends) for ends in there}
        gone = {self._peers.get(ends) for ends in self._ends - there}
        return sorted(rank for rank in gone - living if rank is not None)

    def rtt_s(self) -> float:
        """The kernel's smoothed round-trip time to the nearest of the other ranks, in seconds; 0 if unknown.

        All round trips of a rank with a slow network are long, of another rank only those to that rank.
        """
        rtts = _look.rtts()
        return min((rtts[ends] for ends in self._ends if ends in rtts), default=0.0)

    def _find_peers(self, ranks: Assembly) -> Mapping[_Ends, int]:
        """The rank at the other end of each connection."""
        ranks_at: dict[Any, int] = {ip: rank for rank, ip in self._ip_of.items()}
        if len(ranks_at) == ranks.size:
            return {ends: ranks_at[ends[1][0]] for ends in self._ends if ends[1][0] in ranks_at}
        connected = ranks.exchange("connected", [own for own, _ in self._ends])
        own_ends = {
            tuple(own): rank for rank, each in enumerate(connected) for own in each if rank != ranks.rank
        }
        return {ends: own_ends[ends[1]] for ends in self._ends if ends[1] in own_ends}

    def _connected(self) -> Iterator[socket.socket]:
        for tcp, ends in _connections():
            if ends in self._ends:
                yield tcp

    @property
    def ends(self) -> Set[_Ends]:
        """The two addresses of each connection."""
        return self._ends


class _Look:
    """What the connections of all groups look like, looked up once a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._looked_at = 0.0
        self._seconds: dict[str, float] = {}
        self._rtts: dict[_Ends, float] = {}

    def silence(self) -> Mapping[str, float]:
        """For how many seconds hosts have been silent, by address. A host that is heard on one connection is not
        silent: another may wait long for its next attempt, after an outage."""
        with self._lock:
            self._look()
            return self._seconds

    def established(self) -> Set[_Ends]:
        """The connections that neither process has closed."""
        return self.rtts().keys()

    def rtts(self) -> Mapping[_Ends, float]:
        """The round-trip times of these connections, in seconds."""
        with self._lock:
            self._look()
            return self._rtts

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S:
            return
        known = set().union(*(group.ends for group in _groups))
        seconds: dict[str, float] = {}
        rtts = {}
        for tcp, ends in _connections():
            if ends in known:
                info, host = _info(tcp), ends[1][0]
                if info[0] == _ESTABLISHED:
                    (silence_ms,) = _SILENCE.unpack_from(info, _SILENCE_AT)
                    seconds[host] = min(seconds.get(host, math.inf), silence_ms / 1000)
                    rtts[ends] = _RTT.unpack_from(info, _RTT_AT)[0] / 1e6
        self._looked_at, self._seconds, self._rtts = now, seconds, rtts


_groups: "weakref.WeakSet[GlooConnections]" = weakref.WeakSet()
_look = _Look()


def _forget_all() -> None:
    """A forked child watches no host, and the lock may be held."""
    global _look
    _look = _Look()


os.register_at_fork(after_in_child=_forget_all)


def _info(tcp: socket.socket) -> bytes:
    return tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)


def _connections() -> Iterator[tuple[socket.socket, _Ends]]:
    """This process's TCP connections."""
    for tcp in tcp_sockets():
        with contextlib.suppress(OSError):  # not connected
            yield tcp, (tcp.getsockname()[:2], tcp.getpeername()[:2])
