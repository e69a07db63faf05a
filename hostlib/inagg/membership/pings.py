# SPDX-License-Identifier: Apache-2.0
"""Finds out which switches of a job's tree are down, for a rank that has lost the controller.

A rank that reaches the controller through its switch loses both at once. Missing results prove nothing: a slow rank
delays them too. Pings do: each switch answers them itself, at once (docs/protocol.md, 6.3).

Only switches that have answered before are judged. A firewall may drop pings, this process may not be allowed to send
any, and ordinary traffic does not reach every spine.
"""

import contextlib
import math
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import Self

from inagg_contract.documents import RegisteredWorker

# A switch that answers no ping for this time is down. On links that lose a fifth of the packets each way, a switch that
# lives answers none of so many once in 12 million times.
_PATIENCE_S = 4.0
_PAUSE_S = 0.25  # between pings
# The same for a switch that is asked with heartbeats, at most once in _ASK_S.
_SILENT_S, _ASK_S = 2.0, 0.4

_LEARNING_ROUNDS = 10  # before the first heartbeats
_LEARNING_S = 0.05  # for answers in one round

_ECHO_REPLY, _ECHO_REQUEST = 0, 8  # RFC 792
_HEADER = struct.Struct("!BBHHH")  # type, code, checksum, identifier, sequence number
_TOKEN_BYTES = 8


class SwitchPings:
    """Pings the switches of one rank's job.

    own: the name of the switch that the rank's host is at. addresses: of each switch, by name.
    """

    def __init__(self, own: str, addresses: Mapping[str, str]) -> None:
        self._own = own
        self._addresses = addresses
        self._answering: set[str] = set()
        self._rounds = _LEARNING_ROUNDS
        self._asked_at = self._heard_at = -math.inf

    @classmethod
    def of(cls, worker: RegisteredWorker) -> Self:
        """For a rank that has registered; the same object for jobs with the same switches. Servers have none."""
        own, addresses = "", {}
        if worker.switch is not None and worker.aggregator is not None:
            own = worker.switch
            addresses = {switch.switch: switch.aggregator_ip for switch in worker.tree}
            addresses[own] = worker.aggregator.ip
        key = (cls, own, *addresses.items())
        found = _known.get(key)
        if not isinstance(found, cls):
            found = _known[key] = cls(own, addresses)
        return found

    def learn(self) -> None:
        """Ping the switches that have not answered yet. To be called repeatedly while the network is well."""
        unknown = self._addresses.keys() - self._answering
        if not unknown or self._rounds == 0:
            return
        self._rounds -= 1
        self._answering |= self._ask(unknown, _LEARNING_S, threading.Event()) or set()

    def ask_own(self) -> None:
        """Ping the rank's own switch. To be called repeatedly while sums do not go there.

        It takes some milliseconds, and 50 if no answer comes; for all ranks of a process with this switch once.
        """
        now = time.monotonic()
        if self._own not in self._answering or now - self._asked_at < _ASK_S:
            return
        self._asked_at = now
        if self._ask([self._own], _LEARNING_S, threading.Event()):
            self._heard_at = now

    @property
    def own_is_silent(self) -> bool:
        """Whether the rank's own switch has answered no ping for some time, though it did before."""
        return self._own in self._answering and time.monotonic() - self._heard_at >= _SILENT_S

    def down(self, stopping: threading.Event) -> tuple[str, ...]:
        """The switches that have answered before and do not now, as "leaf2 (10.0.255.2)", in the order of `addresses`.

        If the rank's own switch is down it is the only one, because all others are behind it. Of several others, one
        may hide the rest. It takes some seconds if there are any, else milliseconds. Setting `stopping` ends it early,
        without a result.
        """
        answering = self._ask(self._answering, _PATIENCE_S, stopping)
        if answering is None or stopping.is_set():
            return ()
        silent = self._answering - answering
        if self._own in silent:
            silent = {self._own}
        return tuple(f"{name} ({address})" for name, address in self._addresses.items() if name in silent)

    def _ask(
        self, switches: Collection[str], patience_s: float, stopping: threading.Event
    ) -> set[str] | None:
        """Ping until all have answered, or patience_s is over. Returns those that have; None: no ping could be sent."""
        waiting = {self._addresses[name]: name for name in switches}
        end = time.monotonic() + patience_s
        token = os.urandom(_TOKEN_BYTES)
        pings = _open()
        if pings is None:
            return None
        with pings:
            while waiting and not stopping.is_set() and (now := time.monotonic()) < end:
                for address in waiting:
                    with contextlib.suppress(OSError):  # no route, or no neighbour: no answer comes
                        pings.sendto(_echo(token), (address, 0))
                for sender in _answers(pings, token, min(now + _PAUSE_S, end)):
                    waiting.pop(sender, None)
                    if not waiting:
                        break
        return set(switches) - set(waiting.values())


# Those that a group uses.
_known: "weakref.WeakValueDictionary[object, SwitchPings]" = weakref.WeakValueDictionary()


def _open() -> socket.socket | None:
    """A socket for pings, as ping(8) has: of the unprivileged kind, else a raw one; None if neither is to be had."""
    for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
        with contextlib.suppress(OSError):
            return socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP)
    return None


def _echo(token: bytes) -> bytes:
    """An echo request. The kernel replaces identifier and checksum in a socket of the unprivileged kind."""
    words = struct.unpack(
        f"!{(_HEADER.size + len(token)) // 2}H", _HEADER.pack(_ECHO_REQUEST, 0, 0, 0, 0) + token
    )
    carried = sum(words)
    while carried >> 16:
        carried = (carried & 0xFFFF) + (carried >> 16)
    return _HEADER.pack(_ECHO_REQUEST, 0, ~carried & 0xFFFF, 0, 0) + token


def _answers(pings: socket.socket, token: bytes, end: float) -> Iterator[str]:
    """The addresses from which replies to the echo of `token` come until `end`."""
    while (left := end - time.monotonic()) > 0:
        pings.settimeout(left)
        try:
            packet, (sender, _) = pings.recvfrom(2048)
        except TimeoutError:
            return
        except OSError:  # that of an earlier ping
            continue
        # A raw socket also gives the IP header, and the ICMP packets of others.
        message = packet[-_HEADER.size - len(token) :]
        if message.endswith(token) and message[0] == _ECHO_REPLY:
            yield sender
