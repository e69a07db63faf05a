# SPDX-License-Identifier: Apache-2.0
"""The reference aggregator behind a UDP socket on 127.0.0.1, and transports around it."""

import os
import random
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from inagg._core import RetransmissionPolicy, Route, Sockets, Transport
from inagg.membership.packet_threads import sharers
from inagg_contract.constants import RUN_CHUNKS
from inagg_simulator.reference import decode
from inagg_simulator.reference_switch import Aggregator
from inagg_simulator.virtual_network import make_aggregator, make_shape

WORDS = 4
SLOTS = 16


def run_program(
    source: str, *arguments: str, timeout_s: float, within: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program to its end, in a process with the import path of this one.

    within: a command that runs the one behind it. Raises subprocess.TimeoutExpired.
    """
    return subprocess.run(
        [*within, sys.executable, "-c", source, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )


class LoopbackSwitch:
    """Serves in a thread from __enter__ to __exit__. A worker's address is learnt from its packets.

    loss: probability with which each packet is lost, each way. longest: bytes of UDP payload; longer ones are lost.
    """

    def __init__(
        self, aggregator: Aggregator, *, loss: float = 0.0, longest: int = 65536, seed: int = 0
    ) -> None:
        self.aggregator = aggregator
        self.loss = loss
        self.longest = longest
        self._draws = random.Random(seed)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._stop, self._stopped = socket.socketpair()
        self._addresses: dict[tuple[int, int], tuple[str, int]] = {}
        self._thread = threading.Thread(target=self._serve, name="loopback-switch")

    @property
    def address(self) -> tuple[str, int]:
        address: tuple[str, int] = self._socket.getsockname()
        return address

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.close()
        self._thread.join()
        self._stopped.close()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            readable, _, _ = select.select([self._socket, self._stopped], [], [], 0)
            if not readable:
                self._idle()
                readable, _, _ = select.select([self._socket, self._stopped], [], [])
            if self._stopped in readable:
                return
            self._handle(*self._socket.recvfrom(65536))

    def _handle(self, datagram: bytes, source: tuple[str, int]) -> None:
        if self._draws.random() < self.loss or len(datagram) > self.longest:
            return
        header = decode(datagram)
        self._addresses[header.job, header.rank] = source
        for rank, result in self.aggregator.process(header.rank, datagram):
            if self._draws.random() >= self.loss:
                self._send(result, self._addresses[header.job, rank])

    def _send(self, result: bytes, to: tuple[str, int]) -> None:
        self._socket.sendto(result, to)

    def _idle(self) -> None:
        """No packet waits."""


def make_transport(
    aggregator: tuple[str, int],
    rank: int = 0,
    workers: int = 1,
    sockets: Sockets | None = None,
    slots: int = SLOTS,
    **timers: float,
) -> Transport:
    """timers: of RetransmissionPolicy."""
    return Transport(
        make_shape(workers, slots=slots, words=WORDS),
        rank=rank,
        route=Route(aggregator=aggregator),
        sockets=sockets or Sockets(local=("127.0.0.1", 0)),
        policy=RetransmissionPolicy(**timers),
    )


def sockets_for(packet_threads: int) -> Sockets:
    """On 127.0.0.1, for a transport with so many packet threads."""
    first = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    first.bind(("127.0.0.1", 0))
    more = sharers(first, packet_threads)
    return Sockets(socket_fd=first.detach(), more=[(udp.detach(), None) for udp in more])


@contextmanager
def group(
    workers: int, *, loss: float = 0.0, packet_threads: int = 1, switch: type[LoopbackSwitch] = LoopbackSwitch
) -> Iterator[list[Transport]]:
    """The transports of a job, which has more slots if they have several packet threads."""
    slots = SLOTS if packet_threads == 1 else 2 * packet_threads * RUN_CHUNKS
    with ExitStack() as stack:
        served = stack.enter_context(switch(make_aggregator(workers, slots=slots, words=WORDS), loss=loss))
        transports = [
            make_transport(served.address, rank, workers, sockets_for(packet_threads), slots)
            for rank in range(workers)
        ]
        for transport in transports:
            stack.callback(transport.close)
        yield transports


@contextmanager
def silent_peer() -> Iterator[tuple[str, int]]:
    """An address that takes packets and never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        yield peer.getsockname()
