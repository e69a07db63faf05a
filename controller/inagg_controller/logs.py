# SPDX-License-Identifier: Apache-2.0
"""The controller's log. Text from clients appears in it and must not be able to forge a line."""

import itertools
import logging
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from inagg_controller.errors import ConfigurationError

# Control characters, and other characters that end a line or change its direction in a terminal.
_ESCAPED = {
    number: f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
    for number in (
        *range(0x20),
        *range(0x7F, 0xA0),
        *range(0x200E, 0x2010),
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
    )
} | {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}


_MOST_LINES = 200
_LONGEST_LINE = 2000  # characters


def one_line(text: str) -> str:
    """Escape a client's text for a terminal, so that it can neither begin a line nor control the terminal."""
    return text.translate(_ESCAPED)


class OneLine(logging.Formatter):
    """Formats each message as one line; the lines of a traceback are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """See logging.Formatter."""
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: "logging._SysExcInfoType") -> str:  # noqa: N802
        """See logging.Formatter."""
        lines = super().formatException(ei).splitlines()
        return "\n".join(f"    {one_line(line)}" for line in lines)


class Line(NamedTuple):
    """A line of the log. number: from 1. at: seconds since 1970."""

    number: int
    at: float
    level: str
    text: str


class RecentLines(logging.Handler):
    """Keeps the last lines of the controller's log."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._lines: deque[Line] = deque(maxlen=_MOST_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        try:
            text = one_line(record.getMessage())[:_LONGEST_LINE]
        except Exception:  # it does not reach who logs
            self.handleError(record)
            return
        self._lines.append(Line(next(self._numbers), record.created, record.levelname.lower(), text))

    def after(self, number: int) -> Sequence[Line]:
        """The lines after the one with this number."""
        self.acquire()  # threads of switches log too
        try:
            return [line for line in self._lines if line.number > number]
        finally:
            self.release()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep what is logged within the block."""
        log = logging.getLogger("inagg_controller")
        log.addHandler(self)
        try:
            yield
        finally:
            log.removeHandler(self)


def log_to_stderr(level: str) -> None:
    """Send the process's log to standard error. Raises ConfigurationError for an unknown level."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigurationError(f"--log-level {level}: must be debug, info, warning or error")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    # p4runtime-shell logs failures that it also raises, and connections that we close, as CRITICAL to the root logger.
    handler.addFilter(lambda record: "p4runtime_sh" not in record.pathname)
    logging.basicConfig(level=number, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(max(number, logging.WARNING))
