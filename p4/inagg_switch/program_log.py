# SPDX-License-Identifier: Apache-2.0
"""What a running program says, brought out on a thread of its own: messages to the log, packets' paths to stdout."""

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000  # lines; further ones are lost, and counted
_FAILED = ("Assert error", "Assume error")


class ProgramLog:
    """Takes lines on the thread that moves packets, which never waits, and writes them on its own."""

    def __init__(
        self, write_line: Callable[[str], None] | None = None, max_waiting: int = MAX_WAITING
    ) -> None:
        """Without `write_line`, lines are messages for the log: of log_msg() at level info, of assertions that failed
        at level warning."""
        self._write_line = write_line or _log
        self._waiting: queue.Queue[str | None] = queue.Queue()
        self._max_waiting = max_waiting
        self._lost = 0  # counted by the thread that writes, told by the other one
        self._told = 0
        self._thread = threading.Thread(target=self._run, name="inagg-program-log", daemon=True)

    def write(self, line: str) -> None:
        """Hands over a line; without room for it, it is lost."""
        if self._waiting.qsize() >= self._max_waiting:
            self._lost += 1
        else:
            self._waiting.put(line)

    def start(self) -> None:
        """Starts to write."""
        self._thread.start()

    def stop(self) -> None:
        """Writes what waits, then ends. Harmless before start()."""
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while (line := self._waiting.get()) is not None:
            self._write_line(line)
            self._tell_lost()
        self._tell_lost()

    def _tell_lost(self) -> None:
        if (lost := self._lost) != self._told:
            logger.warning(
                "%d lines of the program were lost: it has more than can be written", lost - self._told
            )
            self._told = lost


def _log(message: str) -> None:
    logger.log(logging.WARNING if message.startswith(_FAILED) else logging.INFO, "%s", message)
