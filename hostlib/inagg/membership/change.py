# SPDX-License-Identifier: Apache-2.0
"""Takes one rank of a job that has lost its way to the next one (docs/protocol.md, 6.4).

The ranks meet at the controller: each publishes what it has, gets what it lacks, and learns where sums go on.
"""

import logging
import socket
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from inagg.errors import ConfigurationError, ControllerRefusedError, ControllerUnreachableError, JobError
from inagg.membership.interface import interface_of
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
        self._here = _End(joined.udp, None)
        self._beside: _End | None = None

    def _open_ends(self) -> None:
        """Have a server at each address at which this rank may be from now on."""
        joined = self._joined
        self._here = _End(joined.udp, self._server(joined.udp[0], serving=joined.beside is None))
        if joined.beside is not None:
            self._beside = _End([joined.beside], self._server(joined.beside, serving=True))
        elif joined.control_address is not None and (udp := self._bound(joined.control_address)) is not None:
            self._beside = _End([udp], None)
            self._beside = _End([udp], self._server(udp, serving=False))

    def _server(self, udp: socket.socket, *, serving: bool) -> OwnServer | None:
        """The server in this process at the address of a socket. serving: it is that of the lost way, if it had one."""
        joined = self._joined
        if serving and joined.server is not None and joined.server.failure is None:
            return joined.server
        if joined.status.workers > _MOST_SERVED or len(joined.udp) != 1:
            return None
        try:
            with confined_to(joined.cpus):
                return OwnServer(udp.getsockname()[0], joined.client.base_url, joined.cpus)
        except (ConfigurationError, OSError) as error:
            _log.warning("%s: this process cannot serve its job: %s", joined.who, error)
            return None

    def _bound(self, address: str) -> socket.socket | None:
        """A socket at an address beside the switches; None if packets cannot leave there."""
        who, needed = self._joined.who, data_mtu(self._joined.status.words)
        try:
            mtu = interface_of(address).mtu
            if mtu >= needed:
                return bind(address)
            _log.warning(
                "%s: no sums at %s: its MTU is %d, and packets have %d bytes", who, address, mtu, needed
            )
        except ConfigurationError as error:  # the host has it no more
            _log.warning("%s: no sums beside the switches: %s", who, error)
        return None

    def go_on(self) -> Changed:
        at = time.time()
        way: RegisteredWorker | None = None
        try:
            self._open_ends()
            while way is None:
                self._publish(self._transport.freeze())
                way = self._meet()
            ready_at = time.monotonic()
            end = self._end_of(way)
            with sockets_of(self._client, way, self._rank, end.udp) as sockets:
                self._transport.go_on(**way_of(way, end.own), sockets=sockets)
        except BaseException:
            self._keep(self._joined.beside, self._joined.server)
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
        """At which of its ends this rank is on a way."""
        if self._beside is None:
            return self._here
        at = {member.rank: (member.ip, member.udp_port) for member in way.members}.get(self._rank)
        return self._beside if at == self._beside.address else self._here

    def _take(self, way: RegisteredWorker, end: _End) -> None:
        """The rank is on the new way."""
        joined = self._joined
        beside = end.udp[0] if end is self._beside else None
        server = end.own if index_of(way, self._rank) is not None else None
        self._keep(beside, server)
        joined.status, joined.pings = way, SwitchPings.of(way)
        joined.server, joined.beside = server, beside
        if server is not None:
            server.drop_earlier()

    def _keep(self, beside: socket.socket | None, server: OwnServer | None) -> None:
        """Close what this rank has beside the switches but `beside`, and all servers but `server`."""
        ends = [self._here] if self._beside is None else [self._here, self._beside]
        for own in {self._joined.server, *(end.own for end in ends)} - {server, None}:
            assert own is not None
            own.close()
        sockets = {self._joined.beside, *(() if self._beside is None else self._beside.udp)}
        for udp in sockets - {beside, None}:
            assert udp is not None
            udp.close()


def _name(way: RegisteredWorker) -> str:
    """What sums: "leaf1, spine1", "4 servers", "s1 and 2 servers"."""
    parts = [", ".join(switch.switch for switch in way.tree)] if way.tree else []
    if way.aggregation != LEASED:
        parts.append(f"{len(way.servers)} server{'' if len(way.servers) == 1 else 's'}")
    return " and ".join(parts)
