# SPDX-License-Identifier: Apache-2.0
"""`inagg logs`: shows the output of a testbed's processes, each in NAME.log of the results folder."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from inagg_testbed.errors import ConfigurationError

_POLL_S = 0.2
_READ_BACK_BYTES = 1 << 20


class LogTail:
    """Reads a growing log by lines: from its last `lines` lines, or from its beginning (None)."""

    def __init__(self, path: Path, lines: int | None) -> None:
        self.name = path.stem
        self._file = path.open("rb")
        self._pending: list[bytes] = []
        self._rest = b""
        if lines is not None:
            self._file.seek(max(0, path.stat().st_size - _READ_BACK_BYTES))
            *whole, self._rest = self._file.read().split(b"\n")
            self._pending = whole[len(whole) - min(lines, len(whole)) :]

    def read(self, *, all_of_it: bool = False) -> Iterator[str]:
        """Lines since the last call; an incomplete last line only with `all_of_it`."""
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        lines, self._pending = [*self._pending, *whole], []
        if all_of_it and self._rest:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            yield line.decode(errors="replace")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def log_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """The logs in a folder: those of `names`, or all. Raises ConfigurationError."""
    there = {path.stem: path for path in sorted(folder.glob("*.log"))}
    for name in names:
        if name not in there:
            known = ", ".join(there) or "none yet"
            raise ConfigurationError(f"no log of {name}; the logs in {folder} are: {known}")
    return [there[name] for name in names] if names else list(there.values())


def show_logs(
    folder: Path,
    names: Sequence[str],
    *,
    lines: int,
    follow: Callable[[], bool] | None,
    on_line: Callable[[str, str], object],
) -> None:
    """Call `on_line` with the log's name and the line, for the last `lines` lines of each log.

    With `follow`, go on as long as it returns True, new logs included. Raises ConfigurationError.
    """
    tails = {path: LogTail(path, lines) for path in log_files(folder, names)}
    try:
        while True:
            going = follow is not None and follow()
            for tail in tails.values():
                for line in tail.read(all_of_it=not going):
                    on_line(tail.name, line)
            if not going:
                return
            time.sleep(_POLL_S)
            if not names:
                for path in log_files(folder, ()):
                    if path not in tails:
                        tails[path] = LogTail(path, None)
    finally:
        for tail in tails.values():
            tail.close()
