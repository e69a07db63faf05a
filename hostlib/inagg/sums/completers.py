# SPDX-License-Identifier: Apache-2.0
"""Threads that call back those who asked for the end of a sum."""

import contextlib
import threading
import time
from collections.abc import Sequence

from inagg import _core
from inagg.sums.reduction import Callback, Reduction

_DEADLINES_S = 1.0  # between looks at the deadlines of what is watched
_FREE = 2  # more that are not in a callback end


class Completers:
    """Those of one session. One more than are in a callback waits for what is done next, so that a callback may itself
    wait for another sum.

    job: names the threads.
    """

    def __init__(self, transport: _core.Transport, job: int) -> None:
        self._transport = transport
        self._job = job
        self._lock = threading.Lock()  # guards what follows, and the callbacks of each Reduction
        self._watched: dict[int, Reduction] = {}
        self._ended = False  # the transport has failed: nobody looks after _watched any more
        self._threads: set[threading.Thread] = set()
        self._free = 0  # those not in a callback
        with self._lock:
            self._add()

    def watch(self, reduction: Reduction, callback: Callback) -> None:
        """See `Reduction.on_finished`."""
        with self._lock:
            if not self._ended:
                reduction.callbacks.append(callback)
                self._watched[reduction.ticket] = reduction
                self._transport.watch(reduction.ticket)
                return
        reduction.wait(0.0)
        callback()

    def threads(self) -> Sequence[threading.Thread]:
        with self._lock:
            return tuple(self._threads)

    def join(self) -> None:
        """When the transport has failed: wait until every callback has been made; but for the one that calls this."""
        while others := [thread for thread in self.threads() if thread is not threading.current_thread()]:
            others[0].join()

    def _add(self) -> None:
        """With the lock held, so that others see it when it is started."""
        thread = threading.Thread(target=self._run, name=f"inagg-done-{self._job}", daemon=True)
        thread.start()
        self._threads.add(thread)
        self._free += 1

    def _run(self) -> None:
        """Call back those who watch, as they are done; after a failure, all that are left."""
        try:
            while (done := self._next_done()) is not None:
                with self._lock:
                    self._free -= 1
                    if self._free == 0:
                        # Where there are no more threads: one callback after the other.
                        with contextlib.suppress(RuntimeError):
                            self._add()
                self._call_back(done)
                with self._lock:
                    if self._free >= _FREE:
                        break
                    self._free += 1
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next_done(self) -> Reduction | None:
        """One that is watched and done; None when there will be no more."""
        while True:
            try:
                ticket = self._transport.next_done(_DEADLINES_S)
            except _core.EngineError:
                with self._lock:
                    self._ended = True
                    return self._watched.pop(next(iter(self._watched))) if self._watched else None
            with self._lock:
                if ticket is not None and ticket in self._watched:
                    return self._watched.pop(ticket)
                overdue = min(self._watched.values(), key=lambda one: one.deadline, default=None)
            if overdue is not None and overdue.deadline < time.monotonic():
                overdue.wait(None)

    def _call_back(self, reduction: Reduction) -> None:
        reduction.wait(0.0)
        with self._lock:
            callbacks, reduction.callbacks = reduction.callbacks, []
        for callback in callbacks:
            callback()
