# SPDX-License-Identifier: Apache-2.0
"""Writes the messages and packet traces of a running program, on a separate thread."""

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000  # lines; further ones are lost and counted
_FAILED = ("Assert error", "Assume error")


class ProgramLog:
    """Accepts lines from the packet loop, which never waits, and writes them on its own thread."""

    def __init__(
        self, write_line: Callable[[str], None] | None = None, max_waiting: int = MAX_WAITING
    ) -> None:
        """write_line: writes a line. None: to the log, at level info for log_msg(), warning for failed assertions."""
        self._write_line = write_line or _log
        self._waiting: queue.Queue[str | None] = queue.Queue()
        self._max_waiting = max_waiting
        self._lost = 0  # written by the packet loop's thread
        self._reported = 0  # of these; written by this object's thread
        self._thread = threading.Thread(target=self._run, name="inagg-program-log", daemon=True)

    def write(self, line: str) -> None:
        """Queue a line; count it as lost if there is no room."""
        if self._waiting.qsize() >= self._max_waiting:
            self._lost += 1
        else:
            self._waiting.put(line)

    def start(self) -> None:
        """Start to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write the queued lines, then end. Does nothing before start()."""
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while (line := self._waiting.get()) is not None:
            self._write_line(line)
            self._report_lost()
        self._report_lost()

    def _report_lost(self) -> None:
        if (lost := self._lost) != self._reported:
            logger.warning(
                "%d lines of the program were lost: it has more than can be written", lost - self._reported
            )
            self._reported = lost


def _log(message: str) -> None:
    logger.log(logging.WARNING if message.startswith(_FAILED) else logging.INFO, "%s", message)
