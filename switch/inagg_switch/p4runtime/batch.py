# SPDX-License-Identifier: Apache-2.0
"""A WriteRequest whose plain table entries stay encoded, because protobuf's Python takes 100 us for each of them.

Native code (ports/control/entries.hpp) copies plain entries from the message to the program, thousands at a time. Other
updates, and refused ones, are decoded and applied by write.py, which knows the reasons of a refusal.
"""

from collections.abc import Callable

from p4.v1 import p4runtime_pb2

from inagg_switch._ports import TableUpdates
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.errors import Code, RequestError
from inagg_switch.p4runtime.requests import MAX_HEAD_BYTES, decode, malformed

MAX_UPDATES = 200_000  # of a request
MAX_UPDATE_BYTES = 1 << 20
_KEPT = 1000  # the first updates are kept decoded between check and write; later ones are decoded twice

# Updates whose result the client cannot receive are not tried.
NOT_TRIED = RequestError(Code.CANCELLED, "not tried: the client has gone, or its deadline is over")

Attempt = Callable[[Target, p4runtime_pb2.Update], RequestError | None]


class WriteBatch:
    """The updates of a request, in their order."""

    def __init__(self, message: bytes) -> None:
        """Raises RequestError if the message is not a WriteRequest; the updates themselves are not checked."""
        self._tables = TableUpdates(message, MAX_UPDATES)
        self._decoded: dict[int, p4runtime_pb2.Update] = {}
        self._written: set[str] = set()
        if self._tables.has_too_many:
            raise RequestError(
                Code.RESOURCE_EXHAUSTED, f"the switch takes {MAX_UPDATES:,} updates in a request at most"
            )
        if self._tables.is_sound:
            self.request = decode(p4runtime_pb2.WriteRequest, self._tables.rest)
            self._size = len(self._tables)
        else:
            if len(message) > MAX_HEAD_BYTES:
                raise malformed()
            self.request = decode(p4runtime_pb2.WriteRequest, message)
            self._decoded = dict(enumerate(self.request.updates))
            self._size = len(self._decoded)

    def __len__(self) -> int:
        return self._size

    def check(self, go_on: Callable[[], object] = lambda: None) -> None:
        """Raise RequestError if an update cannot be decoded. go_on: called now and then; raises to give up."""
        if self._tables.is_sound:
            for place in range(self._size):
                if not place % _KEPT:
                    go_on()
                if not self._tables.is_plain(place):
                    update = self._decode(place)
                    if place < _KEPT:
                        self._decoded[place] = update

    def update(self, place: int) -> p4runtime_pb2.Update:
        """The update, decoded."""
        update = self._decoded.get(place) or self._decode(place)
        self._written.add(update.entity.WhichOneof("entity") or "")
        return update

    def _decode(self, place: int) -> p4runtime_pb2.Update:
        return decode(p4runtime_pb2.Update, self._tables.message(place), MAX_UPDATE_BYTES)

    def has_written(self, kind: str) -> bool:
        """Whether update() has returned an update of this kind of entity."""
        return kind in self._written

    def write_entries(self, target: Target, first: int, *, only_inserts: bool = False) -> int:
        """Write plain table entries from `first` on; return the place of the first other or refused update."""
        if not self._tables.is_sound:
            return first
        # Modify and delete of an entry with opaque data must also forget that data, which native code does not have.
        return target.entries.write(self._tables, first, only_inserts or bool(target.opaque))

    def take_back(self, target: Target, written: range) -> int:
        """Delete entries that write_entries() has inserted, the last first; return the number of deleted ones."""
        return target.entries.take_back(self._tables, written.start, written.stop)


def write_each(
    target: Target, batch: WriteBatch, attempt: Attempt, there: Callable[[], bool] = lambda: True
) -> list[RequestError | None]:
    """CONTINUE_ON_ERROR: apply each update while the client is there; return the errors of `attempt`, one for each."""
    errors: list[RequestError | None] = [None] * len(batch)
    place = 0
    while (place := batch.write_entries(target, place)) < len(batch):
        if not there():
            errors[place:] = [NOT_TRIED] * (len(batch) - place)
            break
        errors[place] = attempt(target, batch.update(place))
        place += 1
    return errors
