# SPDX-License-Identifier: Apache-2.0
"""Takes one rank of a job that has lost its way to the next one (docs/protocol.md, 6.4).

Its sockets and servers, and the requests of its `Meeting` with the other ranks.
"""

import logging
import socket
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from inagg.errors import ConfigurationError, ControllerRefusedError, ControllerUnreachableError, InaggError
from inagg.membership.assembly import describe
from inagg.membership.interface import interface_of
from inagg.membership.joined import Joined
from inagg.membership.meeting import Ask, CannotServeError, Meeting, OverError
from inagg.membership.own_server import OwnServer, bind, shape_of
from inagg.membership.pings import SwitchPings
from inagg.membership.rounds import Reducing, Rounds
from inagg.membership.way import confined_to, index_of, sockets_of, way_of
from inagg_contract.aggregation import INNER, LEASED
from inagg_contract.documents import Beside, RegisteredWorker
from inagg_contract.sizes import data_mtu

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# A server keeps a set of ranks in 64 bits.
_MOST_SERVED = 64
# How long an answer may take.
_PATIENCE_S = 1.5
# Requests that the controller refuses for now: it is busy.
_BUSY = (408, 429, 502, 503, 504)
# A controller may be away for so long.
_OUTAGE_S = 60.0
_PAUSE_S = 0.1


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
        self._job, self._rank = joined.status.id, joined.rank
        self._lost, self._why, self._over = lost, why, over
        self._here = _End(joined.udp, None)
        self._beside: _End | None = None
        self._connected: tuple[int, Reducing] | None = None  # epoch of a way, and the ranks connected for it

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
        if joined.status.workers > _MOST_SERVED:
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
        at, rounds = time.time(), None
        try:
            self._open_ends()
            meeting = Meeting(self._joined.transport, self._rank, self._lost, self._offer, self._serve)
            way = self._drive(meeting.find_way())
            ready_at = time.monotonic()
            end = self._end_of(way)
            udp = end.udp if way.aggregation == LEASED else end.udp[:1]
            rounds = self._rounds(way)
            with sockets_of(self._joined.client, way, self._rank, udp) as sockets:
                self._joined.transport.go_on(**way_of(way, end.own, rounds), sockets=sockets)
        except BaseException:
            if rounds is not None:
                rounds.close()
            self._disconnect()
            self._keep(self._joined.beside, self._joined.server)
            raise
        seconds = meeting.lost_for_s + time.monotonic() - ready_at
        self._take(way, end, rounds)
        self._joined.behind |= meeting.behind
        self._drive(meeting.resumed(way))
        return Changed(self._why, at, seconds, _name(way), meeting.filled, meeting.given)

    def _offer(self) -> tuple[int | None, Beside | None]:
        """Where this rank can serve: see Meeting. A server that has ended meanwhile is replaced."""
        self._here = self._serving(self._here)
        self._beside = None if self._beside is None else self._serving(self._beside)
        port = None if self._here.own is None else self._here.own.udp_port
        if self._beside is None or self._beside.own is None:
            return port, None
        ip, udp_port = self._beside.address
        return port, Beside(ip=ip, udp_port=udp_port, server_udp_port=self._beside.own.udp_port)

    def _serving(self, end: _End) -> _End:
        """An end, with another server if its own has ended."""
        if end.own is None or end.own.failure is None:
            return end
        if end.own is not self._joined.server:
            end.own.close()
        return _End(end.udp, self._server(end.udp[0], serving=False))

    def _serve(self, way: RegisteredWorker) -> bool:
        """Have the server in this process serve a way. Returns whether it is one of the way's. Or connect the ranks, if
        they themselves sum.

        Raises:
            CannotServeError: it has ended, or the ranks do not reach each other.
        """
        self._disconnect()
        if way.aggregation == INNER:
            self._connect(way.epoch)
        own, index = self._end_of(way).own, index_of(way, self._rank)
        if index is None:
            return False
        if own is None or own.failure is not None:
            raise CannotServeError(f"the server in the process of rank {self._rank} has ended")
        own.serve(way, index)
        return True

    def _connect(self, epoch: int) -> None:
        connect = self._joined.connect
        try:
            if connect is None:
                raise CannotServeError(f"rank {self._rank} has no gloo group")
            self._connected = epoch, connect(epoch)
        except (InaggError, RuntimeError, OSError) as error:
            raise CannotServeError(
                f"rank {self._rank} does not reach the other ranks over gloo: {describe(error)}"
            ) from error

    def _disconnect(self) -> None:
        connected, self._connected = self._connected, None
        if connected is not None:
            connected[1].close()

    def _rounds(self, way: RegisteredWorker) -> Rounds | None:
        """Begin the rounds of a way in which the ranks themselves sum; None on another."""
        connected = self._connected
        if connected is None or connected[0] != way.epoch:
            return None
        chunks = self._joined.transport.freeze()  # it is frozen, and lacks nothing now
        rounds = Rounds(shape_of(way), chunks, connected[1])
        self._connected = None
        return rounds

    def _drive(self, steps: Generator[Ask, Any, _T]) -> _T:
        """Ask what a meeting asks, and return its result."""
        try:
            ask = next(steps)
            while True:
                try:
                    answer = self._ask(ask)
                except ControllerRefusedError as refused:
                    ask = steps.throw(refused)
                else:
                    ask = steps.send(answer)
        except StopIteration as done:
            result: _T = done.value
            return result

    def _ask(self, ask: Ask) -> object:
        """Make a request, repeatedly until the controller answers."""
        request = getattr(self._joined.client, ask.request)
        options = {} if ask.hold_s is None else {"hold_s": ask.hold_s}
        end = time.monotonic() + _OUTAGE_S
        while not self._over():
            try:
                return request(self._job, self._rank, *ask.arguments, timeout_s=_PATIENCE_S, **options)
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

    def _end_of(self, way: RegisteredWorker) -> _End:
        """At which of its ends this rank is on a way."""
        if self._beside is None:
            return self._here
        at = {member.rank: (member.ip, member.udp_port) for member in way.members}.get(self._rank)
        return self._beside if at == self._beside.address else self._here

    def _take(self, way: RegisteredWorker, end: _End, rounds: Rounds | None) -> None:
        """The rank is on the new way."""
        joined = self._joined
        beside = end.udp[0] if end is self._beside else None
        server = end.own if index_of(way, self._rank) is not None else None
        self._keep(beside, server)
        joined.status, joined.pings = way, SwitchPings.of(way)
        joined.server, joined.beside = server, beside
        before, joined.rounds = joined.rounds, rounds
        if before is not None:
            before.close()
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
    """What sums: "leaf1, spine1", "4 servers", "s1 and 2 servers", "the inner group"."""
    if way.aggregation == INNER:
        return "the inner group"
    parts = [", ".join(switch.switch for switch in way.tree)] if way.tree else []
    if way.aggregation != LEASED:
        parts.append(f"{len(way.servers)} server{'' if len(way.servers) == 1 else 's'}")
    return " and ".join(parts)
