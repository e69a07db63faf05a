# SPDX-License-Identifier: Apache-2.0
"""The queue of messages to one controller, in bounded memory. Thread-safe."""

import queue
import threading
from collections.abc import Callable, Iterator

from inagg_switch.p4runtime.errors import RequestError

MAX_QUEUED_BYTES = 16 << 20  # of messages that a controller has not read; further ones are dropped
MAX_NOTIFICATIONS = 1000  # further messages that must not be lost; if they do not fit, the stream ends


class Stream:
    """The encoded messages of one StreamChannel."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        """cancel: ends the call, even while it waits."""
        self._cancel = cancel
        self._queue: queue.SimpleQueue[bytes | RequestError | None] = queue.SimpleQueue()
        self._bytes = 0
        self._lock = threading.Lock()
        self.is_behind = False  # whether messages to it were dropped, which is logged once

    def offer(self, message: bytes, most: int) -> bool:
        """Queue a message; return False if `most` messages or MAX_QUEUED_BYTES wait already."""
        with self._lock:
            if self._queue.qsize() >= most or self._bytes + len(message) > MAX_QUEUED_BYTES:
                return False
            self._bytes += len(message)
            self._queue.put(message)
            return True

    def notify(self, message: bytes, most: int) -> None:
        """Queue a message that must not be lost; end the call if the controller does not read."""
        with self._lock:
            if self._queue.qsize() < most + MAX_NOTIFICATIONS:
                self._bytes += len(message)
                self._queue.put(message)
                return
        self._cancel()

    def end(self, error: RequestError | None = None) -> None:
        """End the stream after the queued messages, with `error` if given."""
        self._queue.put(error)

    def messages(self) -> Iterator[bytes]:
        """The messages until end(). Raises its error."""
        while (item := self._queue.get()) is not None:
            if isinstance(item, RequestError):
                raise item
            with self._lock:
                self._bytes -= len(item)
            yield item
