# SPDX-License-Identifier: Apache-2.0
"""The controllers of one device: their sessions, which of them are primary, and the messages that wait for them."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.arbitration import Arbitration, ElectionId, Notification, Session
from inagg_switch.p4runtime.errors import Code, RequestError
from inagg_switch.p4runtime.streams import Stream

logger = logging.getLogger(__name__)

_ENDING_S = 0.5
MAX_STREAMS = 32  # each holds a thread, even before its controller has sent an arbitration message
MAX_QUEUED_MESSAGES = (
    1000  # packets, digest lists and idle entries for one controller; further ones are dropped
)


class Controllers:
    """Owns the sessions and their streams. Thread-safe; its lock is held only briefly."""

    def __init__(self, device_id: int) -> None:
        self._lock = threading.Lock()  # guards the other attributes
        self._closed = threading.Condition(self._lock)
        self._arbitration = Arbitration(device_id)
        self._streams: dict[Session, Stream] = {}

    def open(self, cancel: Callable[[], object]) -> tuple[Session, Stream]:
        """Add a session and its stream. cancel: ends the call. Raises RequestError if there are too many."""
        session, stream = Session(), Stream(cancel)
        with self._lock:
            if len(self._streams) >= MAX_STREAMS:
                raise RequestError(Code.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} streams are open already")
            self._streams[session] = stream
        return session, stream

    def close(self, session: Session) -> None:
        """Remove a session whose call has ended; notify the others if it was the primary."""
        with self._lock:
            self._deliver(self._arbitration.disconnect(session))
            del self._streams[session]
            self._closed.notify_all()

    def has(self, session: Session) -> bool:
        """Whether the call of a session goes on."""
        with self._lock:
            return session in self._streams

    def end_all(self, error: RequestError) -> None:
        """End every stream with an error."""
        with self._lock:
            for stream in self._streams.values():
                stream.end(error)

    def wait_for_id(self, session: Session, message: p4runtime_pb2.MasterArbitrationUpdate) -> None:
        """Wait a moment while another session has the election id.

        A client may end its stream and connect again at once: the end may then come after the new stream's message.
        """
        with self._closed:
            self._closed.wait_for(lambda: not self._arbitration.is_taken(session, message), _ENDING_S)

    def arbitrate(self, session: Session, message: p4runtime_pb2.MasterArbitrationUpdate) -> None:
        """Handle a MasterArbitrationUpdate and notify the sessions that it affects. Raises RequestError."""
        with self._lock:
            # The message may have waited for a Write, and its call may have ended meanwhile.
            if session not in self._streams:
                raise RequestError(Code.CANCELLED, "the stream has ended")
            self._deliver(self._arbitration.update(session, message))

    def check_primary(self, role: str, election_id: ElectionId | None) -> None:
        """Raise RequestError unless the role's primary has this election id."""
        with self._lock:
            self._arbitration.check_primary(role, election_id)

    def check_stream(self, session: Session) -> None:
        """Raise RequestError unless `session` is a primary."""
        with self._lock:
            self._arbitration.check_stream(session)

    @contextmanager
    def as_primary(self, session: Session) -> Iterator[None]:
        """Run a block while `session` stays a primary. Raises RequestError if it is not one."""
        with self._lock:
            self._arbitration.check_stream(session)
            yield

    def send(self, session: Session, response: p4runtime_pb2.StreamMessageResponse) -> None:
        """Send a message to a session; drop it if too many wait."""
        with self._lock:
            self._offer(session, response.SerializeToString())

    def send_to_primaries(self, response: p4runtime_pb2.StreamMessageResponse) -> None:
        """Send a message to the primary of each role; drop it where too many wait."""
        message = response.SerializeToString()
        with self._lock:
            for session in self._arbitration.primaries():
                self._offer(session, message)

    def _offer(self, session: Session, message: bytes) -> None:
        stream = self._streams.get(session)
        if stream is None or stream.offer(message, MAX_QUEUED_MESSAGES):
            return
        level = logging.DEBUG if stream.is_behind else logging.WARNING
        logger.log(level, "a controller does not read its stream: messages that do not fit are dropped")
        stream.is_behind = True

    def _deliver(self, notifications: list[Notification]) -> None:
        for notification in notifications:
            stream = self._streams.get(notification.session)
            if stream is not None:
                stream.notify(notification.message.SerializeToString(), MAX_QUEUED_MESSAGES)
