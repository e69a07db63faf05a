# SPDX-License-Identifier: Apache-2.0
"""A program's mutex and life, and what is called back while the mutex is held."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from inagg_switch.errors import SwitchError
from inagg_switch.program.abi import Api

logger = logging.getLogger(__name__)


class ProgramLock:
    """Safe to use from several threads. A callback may not use its program: it gets an error, where it would wait for
    itself for ever."""

    def __init__(self, api: Api, handle: int) -> None:
        """Destroys the program of `handle` after close()."""
        self._api = api
        self._handle = handle
        self._users = 0  # threads that have the mutex or wait for it
        self._closed = False
        self._life = threading.Lock()  # guards these two; taken before or after the mutex, never with it held
        self._calls_back: int | None = None  # the thread that is in a callback; written with the mutex held
        self._raised: list[Exception] | None = None  # by callbacks, if somebody waits for them; likewise

    def refuse_callback(self) -> None:
        """Raises SwitchError in a callback of this program."""
        if self._calls_back == threading.get_ident():
            raise SwitchError(
                "a callback (on_log, on_trace) may not use its switch, which waits for it: note what it was told, and"
                " act afterwards"
            )

    @contextmanager
    def held(self) -> Iterator[tuple[Api, int]]:
        """The function table and handle, with the mutex held."""
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
        """The program's, until close(). Raises SwitchError after it."""
        if self._closed:
            raise SwitchError("the program is closed")
        return self._handle

    def close(self) -> None:
        """Ends the program: now, or when the last thread that is in it has left it."""
        self.refuse_callback()
        with self._life:
            is_last = not self._closed and self._users == 0
            self._closed = True
        if is_last:
            self._api.destroy(self._handle)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raises at the end what a callback has raised. The mutex is held."""
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
        """Around a callback, which native code calls: no exception gets past this."""
        self._calls_back = threading.get_ident()
        try:
            yield
        except Exception as error:
            if self._raised is None:
                logger.exception("a callback failed")
            else:
                self._raised.append(error)
        finally:
            self._calls_back = None
