# SPDX-License-Identifier: Apache-2.0
"""Collects digests for the controller: lists, duplicates, acknowledgements (P4Runtime specification, "DigestEntry").

Sans-IO: time is an argument, in seconds; the sender adds the time of day. add() and due() return the lists to send.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from p4.v1 import p4data_pb2, p4runtime_pb2

from inagg_switch.p4runtime.entities.names import Digest
from inagg_switch.p4runtime.entities.values import byte_width, canonical
from inagg_switch.p4runtime.errors import Code, RequestError, invalid

INSERT = p4runtime_pb2.Update.INSERT
DELETE = p4runtime_pb2.Update.DELETE

MAX_LIST_SIZE = 1000  # if the client sets no limit
MAX_UNACKNOWLEDGED = 100_000  # digests; further ones are lost


@dataclass
class _Learning:
    """One digest that a controller has enabled."""

    config: p4runtime_pb2.DigestEntry.Config
    buffer: dict[bytes, None] = field(default_factory=dict)  # an ordered set
    buffered_since: float = 0.0
    lists: dict[int, tuple[float, list[bytes]]] = field(
        default_factory=dict
    )  # sent: time, data; oldest first
    waiting: set[bytes] = field(default_factory=set)  # the data of all lists
    next_list: int = 1

    def forget(self, list_id: int) -> bool:
        """Let the digests of a list be sent again; return whether the list exists."""
        _, data = self.lists.pop(list_id, (0.0, None))
        self.waiting.difference_update(data or ())
        return data is not None

    def forget_old(self, now: float) -> None:
        """Forget lists that were not acknowledged in time."""
        timeout = self.config.ack_timeout_ns * 1e-9
        while self.lists and now - next(iter(self.lists.values()))[0] >= timeout:
            self.forget(next(iter(self.lists)))


class Digests:
    """The digests of one program."""

    def __init__(self, digests: Sequence[Digest]) -> None:
        self._known = {digest.id: digest for digest in digests}
        self._enabled: dict[int, _Learning] = {}

    @property
    def any_enabled(self) -> bool:
        """Whether a controller has enabled a digest."""
        return bool(self._enabled)

    def write(self, kind: int, message: p4runtime_pb2.DigestEntry) -> None:
        """Enable, change or disable a digest. Raises RequestError."""
        digest = self._digest(message.digest_id)
        there = digest.id in self._enabled
        if kind == INSERT and there:
            raise RequestError(Code.ALREADY_EXISTS, f"digest {digest.name} is enabled")
        if kind != INSERT and not there:
            raise RequestError(Code.NOT_FOUND, f"digest {digest.name} is not enabled")
        config = message.config
        if min(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns) < 0:
            raise invalid(f"digest {digest.name}: a timeout or size is negative")
        if kind == DELETE:
            del self._enabled[digest.id]
            return
        kept = p4runtime_pb2.DigestEntry.Config()
        kept.CopyFrom(config)
        self._enabled.setdefault(digest.id, _Learning(kept)).config = kept

    def read(self, request: p4runtime_pb2.DigestEntry) -> Iterator[p4runtime_pb2.Entity]:
        """The enabled digest with the id, or all for id 0, looked up at once. Raises RequestError."""
        if request.digest_id:
            self._digest(request.digest_id)
        found = [
            (digest_id, learning.config)
            for digest_id, learning in self._enabled.items()
            if request.digest_id in (0, digest_id)
        ]
        return (
            p4runtime_pb2.Entity(digest_entry=p4runtime_pb2.DigestEntry(digest_id=digest_id, config=config))
            for digest_id, config in found
        )

    def _digest(self, digest_id: int) -> Digest:
        if digest_id not in self._known:
            raise invalid(f"the program has no digest with the id 0x{digest_id:08x}")
        return self._known[digest_id]

    def acknowledge(self, message: p4runtime_pb2.DigestListAck) -> None:
        """Let the digests of a list be sent again. Raises RequestError for a list that awaits no acknowledgement."""
        digest = self._digest(message.digest_id)
        learning = self._enabled.get(digest.id)
        if learning is None or not learning.forget(message.list_id):
            raise RequestError(
                Code.NOT_FOUND, f"digest {digest.name}: no list {message.list_id} to acknowledge"
            )

    def add(self, digest_id: int, data: bytes, now: float) -> list[p4runtime_pb2.DigestList]:
        """Add a digest of the program; return lists to send."""
        learning = self._enabled.get(digest_id)
        if learning is None:
            return []
        learning.forget_old(now)
        if data in learning.buffer or data in learning.waiting:
            return []
        if len(learning.waiting) >= MAX_UNACKNOWLEDGED:
            return []
        if not learning.buffer:
            learning.buffered_since = now
        learning.buffer[data] = None
        limit = learning.config.max_list_size or MAX_LIST_SIZE
        if learning.config.max_timeout_ns == 0 or len(learning.buffer) >= limit:
            return [self._send(digest_id, learning, now)]
        return []

    def due(self, now: float) -> list[p4runtime_pb2.DigestList]:
        """Lists to send because their digests have waited for max_timeout_ns."""
        return [
            self._send(digest_id, learning, now)
            for digest_id, learning in self._enabled.items()
            if learning.buffer and now >= _deadline(learning)
        ]

    def _send(self, digest_id: int, learning: _Learning, now: float) -> p4runtime_pb2.DigestList:
        message = p4runtime_pb2.DigestList(digest_id=digest_id, list_id=learning.next_list)
        for data in learning.buffer:
            message.data.append(to_p4data(self._known[digest_id], data))
        if learning.config.ack_timeout_ns:
            learning.lists[learning.next_list] = (now, list(learning.buffer))
            learning.waiting.update(learning.buffer)
        learning.buffer.clear()
        learning.next_list += 1
        return message


def _deadline(learning: _Learning) -> float:
    return learning.buffered_since + float(learning.config.max_timeout_ns) * 1e-9


def to_p4data(digest: Digest, data: bytes) -> p4data_pb2.P4Data:
    """Concatenated fields as the message of the digest's type."""
    message = p4data_pb2.P4Data()
    for width in digest.widths:
        size = byte_width(width)
        value, data = canonical(data[:size]), data[size:]
        if digest.kind == "struct":
            message.struct.members.add().bitstring = value
        elif digest.kind == "tuple":
            message.tuple.members.add().bitstring = value
        else:
            message.bitstring = value
    return message
