# SPDX-License-Identifier: Apache-2.0
"""The file that keeps jobs and servers while the controller does not run: SQLite with a write-ahead log.

What has been saved outlives the process. After a power cut the last moments may be missing, because SQLite does not
wait for the disk then; the file stays whole.
"""

import contextlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from inagg_controller.errors import ConfigurationError
from inagg_controller.jobs.record import Saved

_log = logging.getLogger(__name__)

# Of the tables and the records in them. A file of another format is not read.
_FORMAT = 1
_RETRY_S = 1.0
_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (number INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS members (number INTEGER, rank INTEGER, record BLOB NOT NULL, PRIMARY KEY (number, rank));
CREATE TABLE IF NOT EXISTS servers (name TEXT PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS numbers (kind TEXT PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS keys (kind TEXT PRIMARY KEY, key BLOB NOT NULL);
"""


class UnwritableStateError(ConfigurationError):
    """There can be no file at this place."""


class StateFile:
    """The file of one controller, which has it for itself. It has the jobs' secrets and the key of
    the epochs, so only its owner can read it.

    Raises ConfigurationError: another controller has it, it cannot be written, or it is something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._servers: dict[str, bytes] = {}
        self._unsaved: dict[int, bytes] = {}
        self._unsaved_members: dict[tuple[int, int], bytes] = {}
        self._failing = False
        self._tried_at = 0.0
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.fchmod(descriptor, 0o600)  # SQLite gives the log the same mode
            os.close(descriptor)
            self._database = sqlite3.connect(path, timeout=0, isolation_level=None)
            self._open()
        except OSError as error:
            raise UnwritableStateError(f"--state {path}: {error.strerror or error}") from error
        except sqlite3.Error as error:
            raise ConfigurationError(f"--state {path}: {_why(error)}") from error

    @property
    def due(self) -> bool:
        """Whether to save again what could not be saved."""
        return self._failing and time.monotonic() - self._tried_at >= _RETRY_S

    def _open(self) -> None:
        # The lock lasts until the file is closed, and the log needs no shared memory.
        self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
        (known,) = self._database.execute("PRAGMA user_version").fetchone()
        (tables,) = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if known != (_FORMAT if tables else 0):
            raise sqlite3.DatabaseError(f"its format is {known}; this controller has {_FORMAT}")
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        with self._transaction():  # takes the lock
            for statement in _TABLES.strip().split("\n"):  # files of earlier versions lack some
                self._database.execute(statement)
            if not tables:
                self._database.execute(f"PRAGMA user_version = {_FORMAT}")

    def load(self) -> Saved:
        """Everything that was saved. Raises ConfigurationError."""
        try:
            saved = Saved(
                jobs=self._rows("jobs"),
                members={
                    (number, rank): record
                    for number, rank, record in self._database.execute("SELECT * FROM members ORDER BY 1, 2")
                },
                servers=self._rows("servers"),
                numbers=self._rows("numbers"),
                epoch_key=(texts := self._rows("keys")).get("epochs", b""),
                ordinary=tuple(json.loads(texts.get("ordinary", b"[]"))),
            )
        except sqlite3.Error as error:
            raise ConfigurationError(f"--state {self._path}: {_why(error)}") from error
        self._servers = dict(saved.servers)
        return saved

    def save(self, changes: Saved) -> None:
        """Save changes (`JobTable.changes`). A failure is only logged: the next call saves them too (`due`)."""
        self._unsaved.update(changes.jobs)
        self._unsaved_members.update(changes.members)
        self._tried_at = time.monotonic()
        try:
            with self._transaction():
                self._save_jobs()
                self._save_servers(changes)
                self._replace("numbers", changes.numbers.items())
                self._replace(
                    "keys",
                    [("epochs", changes.epoch_key), ("ordinary", json.dumps(changes.ordinary).encode())],
                )
        except sqlite3.Error as error:
            if not self._failing:
                _log.error("--state %s: jobs are not saved: %s", self._path, error)
            self._failing = True
            return
        if self._failing:
            _log.warning("--state %s: jobs are saved again", self._path)
        self._failing = False
        self._servers = dict(changes.servers)
        self._unsaved.clear()
        self._unsaved_members.clear()

    def close(self) -> None:
        """Close it. Everything is in the file itself then."""
        self._database.close()

    def _save_jobs(self) -> None:
        gone = [(number,) for number, record in self._unsaved.items() if not record]
        self._database.executemany("DELETE FROM jobs WHERE number = ?", gone)
        self._database.executemany("DELETE FROM members WHERE number = ?", gone)
        self._replace("jobs", ((number, record) for number, record in self._unsaved.items() if record))
        left = [at for at, record in self._unsaved_members.items() if not record]
        self._database.executemany("DELETE FROM members WHERE number = ? AND rank = ?", left)
        self._replace("members", ((*at, record) for at, record in self._unsaved_members.items() if record))

    def _save_servers(self, changes: Saved) -> None:
        if changes.servers != self._servers:
            self._database.execute("DELETE FROM servers")
            self._replace("servers", changes.servers.items())

    def _rows(self, table: str) -> dict[Any, Any]:
        return dict(self._database.execute(f"SELECT * FROM {table} ORDER BY 1"))

    def _replace(self, table: str, rows: Iterable[tuple[object, ...]]) -> None:
        places = "?, ?, ?" if table == "members" else "?, ?"
        self._database.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            raise


def _why(error: sqlite3.Error) -> str:
    if "locked" in str(error):
        return "another controller uses this file"
    if isinstance(error, sqlite3.OperationalError):
        return str(error)
    return f"{error}; move the file away to begin without its jobs"
