# SPDX-License-Identifier: Apache-2.0
"""Receives a job's results at its multicast address. Asks for unicast if they do not arrive (docs/protocol.md, 6)."""

import logging
import socket

from inagg._core import Transport
from inagg.errors import InaggError, JobRank
from inagg.membership.control import ControlClient
from inagg_contract.documents import Endpoint, JobStatus

_log = logging.getLogger(__name__)

_IP_MULTICAST_ALL = 49  # linux/in.h
# Results that arrive only when they are sent again. A network that loses a fifth of the packets makes so many in a row
# once in 400,000 times, and then unicast costs bandwidth only.
_MISSED = 8


def open_socket(results: Endpoint, address: str, aggregator: tuple[str, int]) -> socket.socket:
    """A UDP socket for what `aggregator` (ip, port) sends to `results`, on the interface that has `address`. Other
    ranks of this host have sockets of their own for it. Raises OSError."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Nothing that only other sockets of this host have asked for.
        udp.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
        udp.bind((results.ip, results.udp_port))
        udp.connect(aggregator)  # before it joins: anybody may send to this address
        membership = socket.inet_aton(results.ip) + socket.inet_aton(address)
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    except BaseException:
        udp.close()
        raise
    return udp


class MulticastWatch:
    """Changes a job to unicast if this rank misses what is sent to its multicast address."""

    def __init__(self, transport: Transport, client: ControlClient, status: JobStatus, rank: int) -> None:
        """`status`: of the job, when the rank registered."""
        self._transport = transport
        self._client = client
        self._who = JobRank(status.id, status.name, rank)
        self._over = status.results is None

    def look(self) -> None:
        """Ask for unicast if needed. Any thread may call it, as often as it likes."""
        if self._over or self._transport.stats()["unicast_in_a_row"] < _MISSED:
            return
        try:
            results = self._client.status(self._who.job).results
            if results is not None:
                self._client.unicast(self._who.job)
        # Asked again at the next look. RuntimeError: the client has been closed.
        except (InaggError, RuntimeError) as error:
            _log.debug("%s: could not ask for unicast: %s", self._who, error)
            return
        self._over = True
        if results is not None:
            _log.warning(
                "%s: multicast to %s does not arrive, so the switch sends a copy of each result to each "
                "worker",
                self._who,
                results.ip,
            )
