# SPDX-License-Identifier: Apache-2.0
"""What waits to be sent to one controller, in bounded space. Safe to use from several threads."""

import queue
import threading
from collections.abc import Callable, Iterator

from inagg_switch.p4runtime.errors import RequestError

MAX_QUEUED_BYTES = 16 << 20  # of messages that a controller has not read yet; likewise in all of them
MAX_NOTIFICATIONS = 1000  # beyond the other messages: what a controller must hear, or its stream ends


class Stream:
    """The messages of one StreamChannel, encoded."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        """`cancel` ends the call, whatever it waits for."""
        self._cancel = cancel
        self._queue: queue.SimpleQueue[bytes | RequestError | None] = queue.SimpleQueue()
        self._bytes = 0
        self._lock = threading.Lock()
        self.is_behind = False  # messages to it were dropped; warned of once

    def offer(self, message: bytes, most: int) -> bool:
        """Sends a message, unless so many wait already, or too much."""
        with self._lock:
            if self._queue.qsize() >= most or self._bytes + len(message) > MAX_QUEUED_BYTES:
                return False
            self._bytes += len(message)
            self._queue.put(message)
            return True

    def notify(self, message: bytes, most: int) -> None:
        """Sends a message that must not be lost; ends the call of a controller that does not read."""
        with self._lock:
            if self._queue.qsize() < most + MAX_NOTIFICATIONS:
                self._bytes += len(message)
                self._queue.put(message)
                return
        self._cancel()

    def end(self, error: RequestError | None = None) -> None:
        """After what waits already."""
        self._queue.put(error)

    def messages(self) -> Iterator[bytes]:
        """Until end(). Raises its error."""
        while (item := self._queue.get()) is not None:
            if isinstance(item, RequestError):
                raise item
            with self._lock:
                self._bytes -= len(item)
            yield item
