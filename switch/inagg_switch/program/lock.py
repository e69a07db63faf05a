# SPDX-License-Identifier: Apache-2.0
"""A program's mutex and lifetime, and the callbacks that run while the mutex is held."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from inagg_switch.errors import SwitchError
from inagg_switch.program.abi import Api

logger = logging.getLogger(__name__)


class ProgramLock:
    """Guards a program. Thread-safe. A callback that uses its own program gets an error instead of a deadlock."""

    def __init__(self, api: Api, handle: int) -> None:
        """Own the program of `handle`, which is destroyed after close()."""
        self._api = api
        self._handle = handle
        self._users = 0  # threads that have the mutex or wait for it
        self._closed = False
        self._life = threading.Lock()  # guards the two above; never taken while the mutex is held
        self._calls_back: set[int] = set()  # the threads in a callback
        self._raised: list[Exception] | None = (
            None  # of callbacks, for raising(); written with the mutex held
        )

    def refuse_callback(self) -> None:
        """Raise SwitchError if called in a callback of this program."""
        if threading.get_ident() in self._calls_back:
            raise SwitchError(
                "a callback (on_log, on_trace) may not use its switch, which waits for it: copy its arguments, and"
                " act afterwards"
            )

    @contextmanager
    def held(self) -> Iterator[tuple[Api, int]]:
        """Hold the mutex in a block; yields the function table and the handle. Raises SwitchError."""
        self.refuse_callback()
        with self._life:
            handle = self.handle
            self._users += 1
        self._api.lock(handle)
        try:
            yield self._api, handle
        finally:
            self._api.unlock(handle)
            with self._life:
                self._users -= 1
                is_last = self._closed and self._users == 0
            if is_last:
                self._api.destroy(handle)

    @property
    def handle(self) -> int:
        """The program's handle. Raises SwitchError after close()."""
        if self._closed:
            raise SwitchError("the program is closed")
        return self._handle

    def close(self) -> None:
        """Destroy the program, now or when the last thread that uses it is done."""
        self.refuse_callback()
        with self._life:
            is_last = not self._closed and self._users == 0
            self._closed = True
        if is_last:
            self._api.destroy(self._handle)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """At the end of the block, raise the first exception of a callback. The mutex must be held."""
        raised: list[Exception] = []
        self._raised = raised
        try:
            yield
        finally:
            self._raised = None
        if raised:
            raise raised[0]

    @contextmanager
    def callback(self) -> Iterator[None]:
        """Run a callback from native code in a block, which lets no exception pass."""
        self._calls_back.add(threading.get_ident())
        try:
            yield
        except Exception as error:
            if self._raised is None:
                logger.exception("a callback failed")
            else:
                self._raised.append(error)
        finally:
            self._calls_back.discard(threading.get_ident())
