# SPDX-License-Identifier: Apache-2.0
"""Threads that call back those who asked for the end of a sum."""

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from inagg._core import EngineError, Transport
from inagg.sums.reduction import Callback, Reduction

_DEADLINES_S = 1.0  # between looks at the deadlines of what is watched
_FREE = 2  # more that are not in a callback end


@dataclass(slots=True)
class _Watched:
    reduction: Reduction
    callbacks: list[Callback] = field(default_factory=list)


class Completers:
    """Those of one queue of sums. One more than are in a callback waits for what is done next, so that a callback may
    itself wait for another sum.

    job: names the threads.
    """

    def __init__(self, transport: Transport, job: int) -> None:
        self._transport = transport
        self._job = job
        self._lock = threading.Lock()  # guards what follows
        self._watched: dict[int, _Watched] = {}  # by ticket
        self._ended = False  # the transport has failed: nobody looks after _watched any more
        self._threads: set[threading.Thread] = set()
        self._free = 0  # those not in a callback
        with self._lock:
            self._add()

    def watch(self, reduction: Reduction, callback: Callback) -> None:
        """See `Reduction.on_finished`."""
        with self._lock:
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
                done.reduction.wait(0.0)
                for callback in done.callbacks:
                    callback()
                with self._lock:
                    if self._free >= _FREE:
                        break
                    self._free += 1
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next_done(self) -> _Watched | None:
        """One that is watched and done; None when there will be no more."""
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
