# SPDX-License-Identifier: Apache-2.0
"""The Work that a collective of the inner group returns: gloo's, but its failures say what broke the group."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from datetime import timedelta
from operator import methodcaller
from typing import Any

import torch
from torch.distributed.distributed_c10d import Work

from inagg.counters import TalliedCall
from inagg.dynamo import skip_dynamo
from inagg.errors import DeliveryError, InaggError, WaitTimeoutError
from inagg.inner.copied_work import CopiedWork
from inagg.spans import waiting

_NO_TIMEOUT = timedelta(0)


@contextlib.contextmanager
def raising_cause(
    diagnose: Callable[[], InaggError | None], has_ended: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """If gloo fails in the block because the group is broken, raise the InaggError that says why.

    diagnose: returns that error, or None if the group is not broken. has_ended: whether the collective has ended; if
    not, only a wait has taken too long, and gloo's error is raised.
    """
    try:
        yield
    except RuntimeError as error:
        # Failures between ranks come from gloo's transport, and their text says so. Other errors, such as for a type
        # that gloo does not support, concern this rank only.
        problem = diagnose() if "gloo/transport" in str(error) and has_ended() else None
        if problem is None:
            raise
        try:
            raise problem from error
        finally:
            del problem  # its traceback refers to this frame


@skip_dynamo
class InnerWork(Work):
    """Gloo's `work`.

    When it fails because the group is broken, `wait` raises the InaggError that says why, from gloo's RuntimeError.
    A future's callbacks may wait for other collectives of the group.

    Args:
        diagnose: returns what broke the group, None if it is not broken; called when the work has failed, and may take
            seconds.
        call: ended when somebody notices the end of the work.
        ended: called when `wait` has returned from gloo.
        timeout: of a `wait` without one. By default gloo's.
        deliver: completes the result after gloo. The work, and its future, are done after that.
        future_of: makes the work's future. By default the work's own.
    """

    def __init__(
        self,
        work: Work,
        diagnose: Callable[[], InaggError | None],
        call: TalliedCall,
        ended: Callable[[Work], None] = lambda _: None,
        timeout: timedelta = _NO_TIMEOUT,
        deliver: Callable[[], None] | None = None,
        future_of: Callable[[Work], torch.futures.Future[Any]] = methodcaller("get_future"),
    ) -> None:
        super().__init__()
        self._future_of = future_of
        self._asked_for: torch.futures.Future[Any] | None = None  # the future that `future_of` has made
        self._problem: DeliveryError | None = None
        self._future = None if deliver is None else work.get_future().then(self._delivery(deliver))
        self._call = call
        self._ended = ended
        self._work = work
        self._diagnose = diagnose
        self._timeout = timeout

    def _delivery(self, deliver: Callable[[], None]) -> Callable[[torch.futures.Future[Any]], Any]:
        def finish(done: torch.futures.Future[Any]) -> Any:
            results = done.value()  # raises if gloo has failed
            try:
                # Inference mode, because the tensors may have been made in it.
                with torch.inference_mode():
                    deliver()
            except Exception as error:
                self._problem = DeliveryError(error)
                raise self._problem from error
            return results

        return finish

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        with raising_cause(self._diagnose, self._work.is_completed), waiting():
            try:
                done = self._wait(self._timeout if timeout == _NO_TIMEOUT else timeout)
            except RuntimeError as error:
                if timeout == _NO_TIMEOUT or self._work.is_completed():
                    raise
                raise WaitTimeoutError(timeout.total_seconds()) from error
            if self._future is not None:
                with contextlib.suppress(RuntimeError):  # which is `_problem`, without its type
                    self._future.wait()
            if self._asked_for is not None:
                with contextlib.suppress(RuntimeError):
                    self._asked_for.wait()  # as with gloo, it is done when this returns
        if self._problem is not None:
            raise self._problem
        self._call.end()
        self._ended(self._work)
        return done

    def _wait(self, timeout: timedelta) -> bool:
        return self._work.wait() if timeout == _NO_TIMEOUT else self._work.wait(timeout)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        done = self._work.is_completed() and (self._future is None or self._future.done())
        if done:
            self._call.end()
        return done

    def is_success(self) -> bool:
        return self._work.is_success() and self._problem is None

    def exception(self) -> Any:
        if self._problem is not None or not self._work.is_completed():
            return self._problem
        error = _error_of(self._work)
        return self._diagnose() or error if "gloo/transport" in str(error) else error

    def result(self) -> list[torch.Tensor]:
        return self._work.result()

    def get_future(self) -> torch.futures.Future[Any]:
        if self._future is not None:
            return self._future
        if self._asked_for is None:
            self._asked_for = self._future_of(self._work)
        return self._asked_for

    def source_rank(self) -> int:
        return self._work.source_rank()

    def _source_rank(self) -> int:
        return self._work._source_rank()


def _error_of(work: Work) -> Exception | None:
    """What a completed work has raised. Up to torch 2.12, Work.exception raises a TypeError for each work of gloo."""
    if work.is_success():
        return None
    try:
        work.wait()
    except RuntimeError as error:
        return error
    return None


class Waits:
    """Makes waits for a message from any rank end when the group breaks. Gloo has no way to end them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._broken = False
        self._under_way: set[Future[bool]] = set()

    def break_off(self) -> None:
        """End all waits at once, later ones too."""
        with self._lock:
            self._broken = True
            for outcome in self._under_way:
                outcome.cancel()

    def __call__(self, wait: Callable[[], bool]) -> bool | None:
        """Return or raise what `wait` does, run in a thread. None when broken off; the thread then stays behind."""
        outcome: Future[bool] = Future()

        def run() -> None:
            with contextlib.suppress(InvalidStateError):  # broken off
                try:
                    outcome.set_result(wait())
                except Exception as error:
                    outcome.set_exception(error)

        with self._lock:
            if self._broken:
                return None
            self._under_way.add(outcome)
        try:
            threading.Thread(target=run, name="inagg-recv", daemon=True).start()
            return outcome.result()
        except CancelledError:
            return None
        finally:
            with self._lock:
                self._under_way.discard(outcome)


@skip_dynamo
class AnySourceWork(InnerWork):
    """A recv from any rank. Gloo does not end it when connections do: another rank could still send."""

    def __init__(
        self,
        work: Work,
        diagnose: Callable[[], InaggError | None],
        call: TalliedCall,
        waits: Waits,
        timeout: timedelta,
    ) -> None:
        super().__init__(work, diagnose, call, timeout=timeout)
        self._waits = waits

    def _wait(self, timeout: timedelta) -> bool:
        done = self._waits(lambda: super(AnySourceWork, self)._wait(timeout))
        if done is None:
            raise self._diagnose() or RuntimeError("the group was aborted during a recv from any rank")
        if isinstance(self._work, CopiedWork):
            self._work.block_current_stream()  # of this thread, which is not the one that has waited
        return done
