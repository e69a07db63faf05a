"""A WriteRequest whose plain table entries stay as they came: protobuf's Python takes 100 us for each of them.

Those go from the message to the program in native code (native/ports_entries.hpp), thousands at a time. What is not
plain, or is refused, is decoded and done by p4runtime_write.py, which knows the reasons.
"""

from collections.abc import Callable

from p4.v1 import p4runtime_pb2

from inagg_switch._ports import TableUpdates
from inagg_switch.p4runtime_errors import RequestError
from inagg_switch.p4runtime_target import Target

Attempt = Callable[[Target, p4runtime_pb2.Update], RequestError | None]


class WriteBatch:
    """The updates of a request, in their order."""

    def __init__(self, message: bytes) -> None:
        """Raises DecodeError for what is no WriteRequest."""
        self._tables = TableUpdates(message)
        self._decoded: dict[int, p4runtime_pb2.Update] = {}
        if self._tables.is_sound:
            self.request = p4runtime_pb2.WriteRequest.FromString(self._tables.rest)
            for place in range(len(self._tables)):
                if not self._tables.is_plain(place):
                    self._decoded[place] = self.update(place)
            self._size = len(self._tables)
        else:
            self.request = p4runtime_pb2.WriteRequest.FromString(message)
            self._decoded = dict(enumerate(self.request.updates))
            self._size = len(self._decoded)

    def __len__(self) -> int:
        return self._size

    def update(self, place: int) -> p4runtime_pb2.Update:
        """The update, decoded."""
        found = self._decoded.get(place)
        return found if found is not None else p4runtime_pb2.Update.FromString(self._tables.message(place))

    def writes(self, kind: str) -> bool:
        """Whether an update is of such an entity; not of table entries, most of which are never decoded."""
        return any(update.entity.HasField(kind) for update in self._decoded.values())

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
