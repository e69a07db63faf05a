# SPDX-License-Identifier: Apache-2.0
"""Takes one rank of a job that has lost its way to the next one (docs/protocol.md, 6.4).

The ranks meet at the controller: each publishes what it has, gets what it lacks, and learns where sums go on.
"""

import contextlib
import logging
import socket
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from inagg.errors import ConfigurationError, ControllerRefusedError, ControllerUnreachableError, JobError
from inagg.membership.interface import interface_of, source_address
from inagg.membership.joined import Joined
from inagg.membership.own_server import OwnServer, bind
from inagg.membership.pings import SwitchPings
from inagg.membership.way import confined_to, index_of, sockets_of, way_of
from inagg_contract.aggregation import LEASED
from inagg_contract.documents import MOST_RESULT_BYTES, Beside, JobStatus, RegisteredWorker, WayChange
from inagg_contract.sizes import data_mtu

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# A server keeps a set of ranks in 64 bits.
_MOST_SERVED = 64
# How long the controller may hold an answer, and how long one may take. An outage of the network then costs little more
# than it takes itself.
_HOLD_S, _PATIENCE_S = 0.5, 1.5
_CONFLICT = 409
# Requests that the controller refuses for now: it is busy.
_BUSY = (408, 429, 502, 503, 504)
# A controller may be away for so long.
_OUTAGE_S = 60.0
_PAUSE_S = 0.1
# Of one request, so that its body is not too large.
_MOST_GIFTS, _MOST_WANTED = 2048, 4096


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of way of one rank.

    why: the reason. at: when this rank learned of it, in seconds since the epoch (time.time). seconds: from the loss of
    the way, as the controller saw it, until this rank went on. to: what sums now. filled: results that this rank got
    from others. given: those that it gave.
    """

    why: str
    at: float
    seconds: float
    to: str
    filled: int
    given: int

    def as_dict(self) -> dict[str, Any]:
        """For `stats`."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class _End:
    """Where a rank's packets leave and come. udp: the sockets of the packet threads. own: the server in this process;
    None: it has none."""

    udp: Sequence[socket.socket]
    own: OwnServer | None

    @property
    def address(self) -> tuple[str, int]:
        """The address and UDP port of the rank."""
        name = self.udp[0].getsockname()
        return name[0], name[1]


class OverError(Exception):
    """The job has ended, or this rank has left it, before the change was done."""


def go_on(joined: Joined, lost: int, why: str, over: Callable[[], bool]) -> Changed:
    """Take a rank to its job's next way, and return when it has gone on.

    lost: the epoch of the way that the job has lost. over: whether to give up.

    Raises:
        OverError: it is over.
        EngineError: the transport has failed or was closed.
        InaggError: the controller refuses it.
    """
    return _Change(joined, lost, why, over).go_on()


class _Change:
    def __init__(self, joined: Joined, lost: int, why: str, over: Callable[[], bool]) -> None:
        self._joined = joined
        self._client = joined.client
        self._transport = joined.transport
        self._job, self._rank = joined.status.id, joined.rank
        self._lost, self._why, self._over = lost, why, over
        self._filled = self._given = 0
        self._lost_for_s = 0.0
        self._here = _End(joined.udp, self._server())
        self._beside = self._here if joined.is_beside else self._found_beside()

    def _server(self) -> OwnServer | None:
        """The server in this process, which may have to serve."""
        joined = self._joined
        if joined.server is not None and joined.server.failure is None:
            return joined.server
        if not self._can_serve():
            return None
        try:
            return self._opened(joined.udp[0].getsockname()[0])
        except (ConfigurationError, OSError) as error:
            _log.warning("%s: this process cannot serve its job: %s", joined.who, error)
            return None

    def _can_serve(self) -> bool:
        return self._joined.status.workers <= _MOST_SERVED and len(self._joined.udp) == 1

    def _opened(self, address: str) -> OwnServer:
        with confined_to(self._joined.cpus):
            return OwnServer(address, self._client.base_url, self._joined.cpus)

    def _found_beside(self) -> _End | None:
        """This rank's end in the network in which it reaches the controller, if that is not the switches' network.

        It works when the switches have died: the change itself needs it.
        """
        if not self._can_serve():
            return None
        with contextlib.ExitStack() as undo:
            try:
                address = source_address(urlsplit(self._client.base_url).hostname or "")
                if address == self._here.address[0] or address.startswith("127."):
                    return None
                if interface_of(address).mtu < data_mtu(self._joined.status.words):
                    return None
                udp = undo.enter_context(bind(address))
                own = undo.enter_context(self._opened(address))
            except (ConfigurationError, OSError) as error:
                _log.debug("%s: it has no network beside that of the switches: %s", self._joined.who, error)
                return None
            undo.pop_all()
        return _End([udp], own)

    def go_on(self) -> Changed:
        at = time.time()
        way: RegisteredWorker | None = None
        try:
            while way is None:
                self._publish(self._transport.freeze())
                way = self._meet()
            ready_at = time.monotonic()
            end = self._end_of(way)
            with sockets_of(self._client, way, self._rank, end.udp) as sockets:
                self._transport.go_on(**way_of(way, end.own), sockets=sockets)
        except BaseException:
            self._keep(_End(self._joined.udp, self._joined.server))
            raise
        seconds = self._lost_for_s + time.monotonic() - ready_at
        self._take(way, end)
        self._tell(self._client.resumed, way.epoch)
        return Changed(self._why, at, seconds, _name(way), self._filled, self._given)

    def _publish(self, chunks: Sequence[int]) -> None:
        """Publish the next chunks, and wait until all ranks have."""
        numbers = array("I", chunks)
        numbers.byteswap()
        packed = numbers.tobytes()
        port = None if self._here.own is None else self._here.own.udp_port
        beside: Beside | None = None
        if self._beside is not None and self._beside.own is not None:
            ip, udp_port = self._beside.address
            beside = Beside(ip=ip, udp_port=udp_port, server_udp_port=self._beside.own.udp_port)
        while True:
            change = self._ask(self._client.frozen, self._lost, packed, port, beside, hold_s=_HOLD_S)
            if self._is_current(change) and change.frozen:
                return

    def _meet(self) -> RegisteredWorker | None:
        """Give and get results until this rank can go on. Returns where; None if all ranks have to publish again."""
        wanted: set[int] = set()
        given: list[tuple[int, bytes]] = []
        first, serves = True, 0
        while True:
            hold_s = 0 if first else _HOLD_S
            asked = sorted(wanted)[:_MOST_WANTED]
            change = self._ask(self._client.exchange, self._lost, given, asked, hold_s=hold_s)
            if not (self._is_current(change) and change.frozen):  # the controller was started again
                return None
            self._given += len(given)
            if first:
                first, wanted = False, set(change.lacks)
            for result in change.results:
                if result.chunk in wanted:
                    self._fill(result.chunk, result.datagram)
                    wanted.discard(result.chunk)
            given = self._gifts(change.gives)
            way = change.way
            if way is not None and way.epoch != serves and (own := self._end_of(way).own) is not None:
                serves = way.epoch
                index = index_of(way, self._rank)
                if index is not None:
                    own.serve(way, index)
                    self._tell(self._client.serving)
            if way is not None and change.ready and not wanted and not given:
                return way

    def _gifts(self, chunks: Sequence[int]) -> list[tuple[int, bytes]]:
        """The results of chunks, as many as fit into a request."""
        gifts, room = [], MOST_RESULT_BYTES
        for chunk in chunks[:_MOST_GIFTS]:
            datagram = self._transport.kept(chunk)
            room -= len(datagram)
            if room < 0:
                break
            gifts.append((chunk, datagram))
        return gifts

    def _fill(self, chunk: int, datagram: bytes) -> None:
        if not self._transport.fill(datagram):
            raise JobError(f"the result of chunk {chunk} that another rank has kept is not right")
        self._filled += 1

    def _is_current(self, change: WayChange) -> bool:
        """False if the job has lost another way meanwhile. Raises OverError if it has ended."""
        if change.state not in ("changing", "running"):
            raise OverError(change.reason)
        if change.lost is None:
            raise JobError("the controller knows of no change of way")
        self._lost_for_s = change.lost_for_s
        same, self._lost = change.lost == self._lost, change.lost
        return same

    def _ask(self, request: Callable[..., _T], *arguments: object, **options: object) -> _T:
        """Make a request of this rank, repeatedly until the controller answers."""
        end = time.monotonic() + _OUTAGE_S
        while not self._over():
            try:
                return request(self._job, self._rank, *arguments, timeout_s=_PATIENCE_S, **options)
            except ControllerUnreachableError:
                if time.monotonic() >= end:
                    raise
            except ControllerRefusedError as refused:
                if refused.status not in _BUSY or time.monotonic() >= end:
                    raise
                time.sleep(_PAUSE_S)
            except RuntimeError:  # the client has been closed
                break
        raise OverError("it is over")

    def _tell(self, request: Callable[..., JobStatus], *arguments: object) -> None:
        """The same for a request that is void if the way has been lost meanwhile. Later answers say so."""
        try:
            self._ask(request, *arguments)
        except ControllerRefusedError as refused:
            if refused.status != _CONFLICT:
                raise

    def _end_of(self, way: RegisteredWorker) -> _End:
        """Which of its ends this rank has on a way."""
        if self._beside is None:
            return self._here
        at = {member.rank: (member.ip, member.udp_port) for member in way.members}.get(self._rank)
        return self._beside if at == self._beside.address else self._here

    def _take(self, way: RegisteredWorker, end: _End) -> None:
        """The rank is on the new way."""
        joined = self._joined
        serves = end.own is not None and index_of(way, self._rank) is not None
        kept = _End(end.udp, end.own if serves else None)
        self._keep(kept)
        joined.status, joined.pings = way, SwitchPings.of(way)
        joined.server, joined.udp, joined.is_beside = kept.own, kept.udp, end is self._beside
        if joined.server is not None:
            joined.server.drop_earlier()

    def _keep(self, kept: _End) -> None:
        """Close what this rank has at other ends."""
        had = _End(self._joined.udp, self._joined.server)
        ends = [end for end in (had, self._here, self._beside) if end is not None]
        for server in {end.own for end in ends} - {kept.own, None}:
            assert server is not None
            server.close()
        for end in ends:
            for udp in set(end.udp) - set(kept.udp):
                udp.close()


def _name(way: RegisteredWorker) -> str:
    """What sums: "leaf1, spine1", "4 servers", "s1 and 2 servers"."""
    parts = [", ".join(switch.switch for switch in way.tree)] if way.tree else []
    if way.aggregation != LEASED:
        parts.append(f"{len(way.servers)} server{'' if len(way.servers) == 1 else 's'}")
    return " and ".join(parts)
