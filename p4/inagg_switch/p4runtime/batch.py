# SPDX-License-Identifier: Apache-2.0
"""A WriteRequest whose plain table entries stay as they came: protobuf's Python takes 100 us for each of them.

Those go from the message to the program in native code (ports/control/entries.hpp), thousands at a time. What is not
plain, or is refused, is decoded and done by write.py, which knows the reasons.
"""

from collections.abc import Callable

from p4.v1 import p4runtime_pb2

from inagg_switch._ports import TableUpdates
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.errors import Code, RequestError
from inagg_switch.p4runtime.requests import MAX_HEAD_BYTES, decode, malformed

MAX_UPDATES = 200_000  # of a request
MAX_UPDATE_BYTES = 1 << 20
_KEPT = 1000  # first updates that are decoded once, to be checked and to be written; the others twice

Attempt = Callable[[Target, p4runtime_pb2.Update], RequestError | None]


class WriteBatch:
    """The updates of a request, in their order."""

    def __init__(self, message: bytes) -> None:
        """Raises RequestError for what is no WriteRequest, as far as that can be seen from outside its updates."""
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

    def check(self) -> None:
        """Raises RequestError if an update is none."""
        if self._tables.is_sound:
            for place in range(self._size):
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
        """Whether update() has given one of such an entity."""
        return kind in self._written

    def write_entries(self, target: Target, first: int, *, only_inserts: bool = False) -> int:
        """Writes plain table entries from `first` on; the place of the first update that is none, or is refused."""
        if not self._tables.is_sound:
            return first
        # What is remembered of an entry beside it, modify and delete would have to forget.
        return target.entries.write(self._tables, first, only_inserts or bool(target.opaque))

    def take_back(self, target: Target, written: range) -> int:
        """Deletes entries that write_entries() has inserted, the last first; the number of those deleted."""
        return target.entries.take_back(self._tables, written.start, written.stop)


def write_each(target: Target, batch: WriteBatch, attempt: Attempt) -> list[RequestError | None]:
    """CONTINUE_ON_ERROR: the error of each update, as `attempt` gives it for one."""
    errors: list[RequestError | None] = [None] * len(batch)
    place = 0
    while (place := batch.write_entries(target, place)) < len(batch):
        errors[place] = attempt(target, batch.update(place))
        place += 1
    return errors
