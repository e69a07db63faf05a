# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a job meet at the controller to change its way (docs/protocol.md, 7.6), without I/O.

Each publishes what it has, gets what it lacks, and learns where sums go on. A meeting is a generator: it yields what to
ask the controller, and is sent the answers. Whoever drives it repeats a request until an answer comes.
"""

from array import array
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from inagg.errors import ControllerRefusedError, JobError
from inagg_contract.documents import MOST_RESULT_BYTES, Beside, RegisteredWorker, WayChange

# How long the controller may hold an answer. An outage of the network then costs little more than it takes itself.
_HOLD_S = 0.5
_CONFLICT = 409
# Of one request, so that its body is not too large.
_MOST_GIFTS, _MOST_WANTED = 2048, 4096


class OverError(Exception):
    """The job has ended, or this rank has left it, before the change was done."""


class CannotServeError(Exception):
    """This process cannot do its part in the new way: its server has ended, or it does not reach the other ranks."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: a method of ControlClient about a rank, with what follows the rank. hold_s: as there; None: it has no
    such argument."""

    request: Literal["frozen", "exchange", "serving", "lost_way", "resumed"]
    arguments: Sequence[Any] = ()
    hold_s: float | None = None


class Freezing(Protocol):
    """What a meeting needs of a transport; see Transport."""

    def freeze(self) -> list[int]: ...
    def kept(self, chunk: int) -> bytes: ...
    def fill(self, result: bytes) -> bool: ...


Answers = Generator[Ask, Any, None]


class Meeting:
    """One rank's part.

    lost: the epoch of the way that the job has lost. offer: returns the port of the server in this process at the
    registered address, and where the rank is beside the switches; None: neither. serve: has the server in this process
    serve a way. behind: the epochs of the ways that the job is known to have lost. lost_for_s: for how long the job had
    no way, as of the last answer. filled, given: results.
    """

    def __init__(
        self,
        transport: Freezing,
        rank: int,
        lost: int,
        offer: Callable[[], tuple[int | None, Beside | None]],
        serve: Callable[[RegisteredWorker], bool],
    ) -> None:
        self._transport, self._rank, self._lost = transport, rank, lost
        self._offer, self._serve = offer, serve
        self.behind = {lost}
        self.lost_for_s = 0.0
        self.filled = self.given = 0

    def find_way(self) -> Generator[Ask, Any, RegisteredWorker]:
        """Returns the way on which this rank can go on. The rank is frozen then.

        Raises:
            OverError: the job has ended.
            JobError: the controller, or another rank, does not keep to the protocol.
        """
        way: RegisteredWorker | None = None
        while way is None:
            yield from self._publish(self._transport.freeze())
            way = yield from self._exchange()
        return way

    def resumed(self, way: RegisteredWorker) -> Answers:
        """The rank has gone on."""
        yield from _tell(Ask("resumed", (way.epoch,)))

    def _publish(self, chunks: Sequence[int]) -> Answers:
        """Publish the next chunks, and wait until all ranks have."""
        numbers = array("I", chunks)
        numbers.byteswap()
        packed, offer = numbers.tobytes(), self._offer()
        while True:
            change = yield Ask("frozen", (self._lost, packed, *offer), _HOLD_S)
            if self._is_current(change) and change.frozen:
                return

    def _exchange(self) -> Generator[Ask, Any, RegisteredWorker | None]:
        """Give and get results until this rank can go on. Returns where; None if all ranks have to publish again."""
        wanted: set[int] = set()
        given: list[tuple[int, bytes]] = []
        first, serves = True, 0
        while True:
            asked = sorted(wanted)[:_MOST_WANTED]
            change = yield Ask("exchange", (self._lost, given, asked), 0 if first else _HOLD_S)
            if not (self._is_current(change) and change.frozen):  # the controller was started again
                return None
            self.given += len(given)
            if first:
                first, wanted = False, set(change.lacks)
            for result in change.results:
                if result.chunk in wanted:
                    self._fill(result.chunk, result.datagram)
                    wanted.discard(result.chunk)
            given = self._gifts(change.gives)
            way: RegisteredWorker | None = change.way
            if way is not None and way.epoch != serves:
                serves = way.epoch
                try:
                    if self._serve(way):
                        yield from _tell(Ask("serving"))
                except CannotServeError as error:
                    yield from _tell(Ask("lost_way", (way.epoch, str(error))))
                    serves = 0
                    continue
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
        self.filled += 1

    def _is_current(self, change: WayChange) -> bool:
        """False if the job has lost another way meanwhile. Raises OverError if it has ended."""
        if change.state not in ("changing", "running"):
            raise OverError(change.reason)
        if change.lost is None:
            raise JobError("the controller knows of no change of way")
        self.lost_for_s = change.lost_for_s
        same, self._lost = change.lost == self._lost, change.lost
        self.behind.add(change.lost)
        return same


def _tell(ask: Ask) -> Answers:
    """A request that is void if the way has been lost meanwhile. Later answers say so."""
    try:
        yield ask
    except ControllerRefusedError as refused:
        if refused.status != _CONFLICT:
            raise
