"""What a running program says, brought to the log: log_msg() at level info, assertions that failed at level warning."""

import logging
import queue
import threading

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000  # messages; further ones are lost, and counted
_FAILED = ("Assert error", "Assume error")


class ProgramLog:
    """Takes messages on the thread that moves packets, which never waits, and logs them on its own."""

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._waiting: queue.Queue[str | None] = queue.Queue()
        self._max_waiting = max_waiting
        self._lost = 0  # counted by the thread that writes, told by the other one
        self._told = 0
        self._thread = threading.Thread(target=self._run, name="inagg-program-log", daemon=True)

    def write(self, message: str) -> None:
        """Hands over a message; without room for it, it is lost."""
        if self._waiting.qsize() >= self._max_waiting:
            self._lost += 1
        else:
            self._waiting.put(message)

    def start(self) -> None:
        """Starts to log."""
        self._thread.start()

    def stop(self) -> None:
        """Logs what waits, then ends. Harmless before start()."""
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while (message := self._waiting.get()) is not None:
            logger.log(logging.WARNING if message.startswith(_FAILED) else logging.INFO, "%s", message)
            self._tell_lost()
        self._tell_lost()

    def _tell_lost(self) -> None:
        if (lost := self._lost) != self._told:
            logger.warning(
                "%d messages of the program were lost: it has more than can be logged", lost - self._told
            )
            self._told = lost
