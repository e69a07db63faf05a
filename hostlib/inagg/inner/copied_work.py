# SPDX-License-Identifier: Apache-2.0
"""One collective of `inagg.inner.host_copies`, its Work, and the threads that make the callbacks of its future."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch.distributed.distributed_c10d import Work

from inagg.device.streams import Event, new_stream, on_device
from inagg.dynamo import skip_dynamo
from inagg.thread_state import ThreadState

_NO_TIMEOUT = timedelta(0)


class Streams:
    """The streams of one device, for copies in each direction. A copy to the device never waits for one to the host."""

    def __init__(self, device: torch.device) -> None:
        self.to_host = new_stream(device)
        self.to_device = new_stream(device)
        self.delivering = threading.Lock()  # held while copies are queued on `to_device`


class Copy(NamedTuple):
    """A tensor that receives a result, and the host's copy: flat, unless it is sparse."""

    given: torch.Tensor
    host: torch.Tensor

    def bring(self) -> None:
        """Queue the copy to the device on the current stream."""
        strided = self.given.layout == torch.strided
        # Autograd does not see `data` written, as with torch's groups.
        given = self.given.data if strided else self.given
        given.copy_(self.host.view(given.shape) if strided else self.host, non_blocking=True)


class Threads:
    """Threads that wait for gloo or make callbacks: one for each, because callbacks may wait for other collectives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _threads
        self._threads: set[threading.Thread] = set()

    def run(self, task: Callable[[], None]) -> None:
        """Run `task` in a thread; in this one if the system has no more."""

        def run() -> None:
            try:
                task()
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="inagg-copied", daemon=True)
        with self._lock:
            try:
                thread.start()
            except RuntimeError:
                pass
            else:
                self._threads.add(thread)
                return
        task()

    def join(self) -> None:
        """Wait for all threads except the caller's."""
        while True:
            with self._lock:
                others = self._threads - {threading.current_thread()}
            if not others:
                return
            others.pop().join()


class CopiedCall:
    """A call that is handed to gloo, then ends, then is delivered to the device.

    Args:
        call: calls gloo.
        streams: of each device of the call's tensors.
        arrived: of each device, an event after the copies that gloo reads.
        written: the copies that gloo writes.
        results: the tensors of the program that hold the result.
        threads: wait for gloo where it calls nobody back, and make the callbacks of the future.
        by_waiting: whether gloo completes the call only when somebody waits for it, and it may be that nobody does.
    """

    def __init__(
        self,
        call: Callable[[], Work],
        streams: Mapping[torch.device, Streams],
        arrived: Mapping[torch.device, Event],
        written: Sequence[Copy],
        results: list[torch.Tensor],
        threads: Threads,
        *,
        by_waiting: bool,
    ) -> None:
        self.results = results
        self._call: Callable[[], Work] | None = call
        self._streams = streams
        self._arrived = arrived
        self._written = written
        self._threads = threads
        self._by_waiting = by_waiting
        self._handed_over = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()  # held during the delivery; guards what follows
        self.work: Work | None = None  # gloo's, once handed over
        self.problem: Exception | None = None
        self._ends: list[Event] = []
        self._trigger: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._state: ThreadState | None = None  # of the thread that asked for it

    def hand_over(self) -> None:
        """Wait for the copies, and call gloo."""
        assert self._call is not None
        try:
            for device, event in self._arrived.items():
                with on_device(device):
                    event.synchronize()
            work = self._call()
            self.work = work
            if not self._by_waiting:
                self._watch(work)
        except Exception as error:  # of the device, or gloo's about the arguments
            self._finish(error)
        finally:
            self._call = None
            self._handed_over.set()

    def _watch(self, work: Work) -> None:
        """Finish the call when gloo has completed it."""
        try:
            future = work.get_future()
        except RuntimeError:  # a Work of gloo that does its last step when somebody waits
            self._threads.run(lambda: self._end(work.wait))
        else:
            future.add_done_callback(lambda done: self._end(done.value))

    def _end(self, outcome: Callable[[], object]) -> None:
        """Finish the call. outcome: raises gloo's error."""
        try:
            outcome()
            self._finish(None)
        except Exception as error:
            self._finish(error)

    def wait(self, timeout_s: float | None) -> None:
        """Wait until the result has been delivered.

        Raises:
            RuntimeError: gloo's error; or the call has not ended in time.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        ended = (self._handed_over if self._by_waiting else self._ended).wait(timeout_s)
        if not ended:
            raise RuntimeError(f"Operation timed out: it has not ended within {timeout_s:g} s")
        if not self._ended.is_set():
            work = self.work
            assert work is not None
            if end is None:
                work.wait()
            else:
                work.wait(timedelta(seconds=max(0.001, end - time.monotonic())))
            self._finish(None)
        if self._future is not None:
            with contextlib.suppress(Exception):  # which is `problem`
                self._future.wait()  # as with gloo, it is done when this returns
        if self.problem is not None:
            raise self.problem

    def look(self) -> bool:
        """Whether the call has ended, and the device has the result."""
        return self._ended.is_set() and all(end.query() for end in self._ends)

    def _finish(self, problem: Exception | None) -> None:
        """End the call, once. The first caller delivers the result; other callers wait for it."""
        with self._lock:
            if self._ended.is_set():
                return
            try:
                if problem is None:
                    self._deliver()
            except Exception as error:  # any of torch's
                problem = error
            self.problem = None if problem is None else problem.with_traceback(None)
            self._written = ()
            if not self._by_waiting:
                self.work = None  # it keeps gloo's connections open
            self._ended.set()
            waited_for = self._trigger is not None
        if waited_for:
            self._threads.run(self._complete)

    def _deliver(self) -> None:
        # Inference mode, because the tensors may have been made in it.
        for device, streams in self._streams.items():
            with streams.delivering, on_device(device), streams.to_device.current(), torch.inference_mode():
                for copy in self._written:
                    if copy.given.device == device:
                        copy.bring()
                self._ends.append(streams.to_device.record())

    def block_current_stream(self) -> None:
        """Make later work of the calling thread's current stream wait for the result."""
        for end in self._ends:
            end.block_current_stream()

    def future(self) -> torch.futures.Future[list[torch.Tensor]]:
        if self._by_waiting:
            raise RuntimeError("send and recv have no future, as in gloo: call wait()")
        with self._lock:
            if self._future is not None:
                return self._future
            self._state = ThreadState()
            # With devices, callbacks run on their own streams, which first wait for the future's streams.
            self._trigger = torch.futures.Future(devices=self._devices())
            # Only Python sees torch's Future.set_exception. C++ too sees an exception raised inside then().
            self._future = self._trigger.then(self._value)
            ended = self._ended.is_set()
        if ended:
            self._complete()
        return self._future

    def _devices(self) -> list[Any]:
        return [device for device in self._streams if device.type != "cpu"]

    def _complete(self) -> None:
        assert self._trigger is not None
        assert self._state is not None
        devices = self._devices()
        with self._state.restored(), on_device(devices[0]) if devices else contextlib.nullcontext():
            self._trigger.set_result(None)

    def _value(self, _trigger: torch.futures.Future[None]) -> list[torch.Tensor]:
        if self.problem is not None:
            raise self.problem
        self.block_current_stream()
        return self.results


@skip_dynamo
class CopiedWork(Work):
    """What a collective through host copies returns, with the behaviour of gloo's Work for CUDA tensors.

    `wait` blocks the host until the result is queued on the device, and makes the current stream wait for it.
    """

    def __init__(self, call: CopiedCall) -> None:
        super().__init__()
        self._call = call

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        self._call.wait(None if timeout <= _NO_TIMEOUT else timeout.total_seconds())
        self._call.block_current_stream()
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        """Make later work of the current stream wait for the result of a finished call."""
        self._call.block_current_stream()

    def is_completed(self) -> bool:
        return self._call.look()

    def is_success(self) -> bool:
        return self._call.look() and self._call.problem is None

    def exception(self) -> Exception | None:
        return self._call.problem

    def result(self) -> list[torch.Tensor]:
        return self._call.results

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._call.future()

    def source_rank(self) -> int:
        return self._source_rank()

    def _source_rank(self) -> int:
        work = self._call.work
        if work is None:
            raise RuntimeError("the source is known after wait()")
        return work._source_rank()
