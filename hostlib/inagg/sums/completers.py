# SPDX-License-Identifier: Apache-2.0
"""Threads that make callbacks when sums end."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from inagg._core import EngineError, Transport
from inagg.sums.reduction import Callback, Reduction

_log = logging.getLogger(__name__)

_DEADLINES_S = 1.0  # between two looks at the deadlines of watched sums
_FREE = 2  # threads that may wait for work; others end after their callback


@dataclass(slots=True)
class _Watched:
    reduction: Reduction
    callbacks: list[Callback] = field(default_factory=list)


class Completers:
    """The threads of one queue of sums. The first one starts when a sum is first watched.

    From then on at least one thread is always free to see which sum ends next, so that a callback may wait for another
    sum.

    job: its number is part of the threads' names.
    """

    def __init__(self, transport: Transport, job: int) -> None:
        self._transport = transport
        self._job = job
        self._lock = threading.Lock()  # guards what follows
        self._watched: dict[int, _Watched] = {}  # by ticket
        self._ended = False  # the transport has failed, so no thread serves new entries of _watched
        self._threads: set[threading.Thread] = set()
        self._free = 0  # threads that are not in a callback

    def watch(self, reduction: Reduction, callback: Callback) -> None:
        """See `Reduction.on_finished`."""
        with self._lock:
            if not self._ended and not self._threads:
                self._add()
            if not self._ended:
                watched = self._watched.setdefault(reduction.ticket, _Watched(reduction))
                watched.callbacks.append(callback)
                self._transport.watch(reduction.ticket)
                return
        reduction.wait(0.0)
        callback()

    def threads(self) -> Sequence[threading.Thread]:
        with self._lock:
            return tuple(self._threads)

    def join(self) -> None:
        """Wait until every callback has been made, after the transport has failed.

        If a callback calls this, it does not wait for its own thread.
        """
        while others := [thread for thread in self.threads() if thread is not threading.current_thread()]:
            others[0].join()

    def _add(self) -> None:
        """Start a thread. The caller holds the lock, so that other threads see this one only once it has started."""
        thread = threading.Thread(target=self._run, name=f"inagg-done-{self._job}", daemon=True)
        thread.start()
        self._threads.add(thread)
        self._free += 1

    def _run(self) -> None:
        """Make the callbacks of watched sums as they end; after a failure, all that are left."""
        try:
            while (done := self._next_done()) is not None:
                with self._lock:
                    self._free -= 1
                    if self._free == 0:
                        # If the system has no more threads, callbacks run one after the other.
                        with contextlib.suppress(RuntimeError):
                            self._add()
                self._finish(done)
                with self._lock:
                    if self._free >= _FREE:
                        break
                    self._free += 1
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _finish(self, done: _Watched) -> None:
        """Deliver a sum and make its callbacks. An error ends neither the thread nor the other callbacks."""
        calls: list[Callable[[], object]] = [partial(done.reduction.wait, 0.0), *done.callbacks]
        for call in calls:
            try:
                call()
            except Exception:
                _log.exception("inagg: job %d: a callback of a sum failed", self._job)

    def _next_done(self) -> _Watched | None:
        """Wait for a watched sum that is done. None once the transport has failed and no watched sum is left."""
        while True:
            try:
                ticket = self._transport.next_done(_DEADLINES_S)
            except EngineError:
                with self._lock:
                    self._ended = True
                    return self._watched.pop(next(iter(self._watched))) if self._watched else None
            with self._lock:
                if ticket is not None and ticket in self._watched:
                    return self._watched.pop(ticket)
                sums = (watched.reduction for watched in self._watched.values())
                overdue = min(sums, key=lambda one: one.deadline, default=None)
            if overdue is not None and overdue.deadline < time.monotonic():
                overdue.wait(None)
