# SPDX-License-Identifier: Apache-2.0
"""What a collective of the inner group gives back: gloo's Work, whose failure is told as what broke the group."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import Work

from inagg.counters import TalliedCall
from inagg.dynamo import skip_dynamo
from inagg.errors import InaggError

_NO_TIMEOUT = timedelta(0)


@contextlib.contextmanager
def told_as(
    diagnose: Callable[[], InaggError | None], has_ended: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Where gloo fails in the block because the group is broken, raise the InaggError that says why.

    has_ended: a wait that has taken too long is no failure, as the collective goes on.
    """
    try:
        yield
    except RuntimeError as error:
        # A type that gloo does not take is this rank's own affair; what failed between ranks has come up from gloo's
        # transport, which says so.
        problem = diagnose() if "gloo/transport" in str(error) and has_ended() else None
        if problem is None:
            raise
        try:
            raise problem from error
        finally:
            del problem  # whose traceback refers to this frame


@skip_dynamo
class InnerWork(Work):
    """Gloo's `work`.

    When it fails because the group is broken, `wait` raises the InaggError that says why, from gloo's RuntimeError.
    The future is gloo's own.

    Args:
        diagnose: what broke the group, None if nothing did; asked when the work has failed, and may take a moment.
        call, ended: to be told of the end, when somebody notices it.
    """

    def __init__(
        self,
        work: Work,
        diagnose: Callable[[], InaggError | None],
        call: TalliedCall,
        ended: Callable[[Work], None] = lambda _: None,
    ) -> None:
        super().__init__()
        self._call = call
        self._ended = ended
        self._work = work
        self._diagnose = diagnose

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        with told_as(self._diagnose, self._work.is_completed):
            done = self._wait(timeout)
        self._call.end()
        self._ended(self._work)
        return done

    def _wait(self, timeout: timedelta) -> bool:
        return self._work.wait() if timeout == _NO_TIMEOUT else self._work.wait(timeout)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        done = self._work.is_completed()
        if done:
            self._call.end()
        return done

    def is_success(self) -> bool:
        return self._work.is_success()

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> list[torch.Tensor]:
        return self._work.result()

    def get_future(self) -> torch.futures.Future[Any]:
        return self._work.get_future()

    def source_rank(self) -> int:
        return self._work.source_rank()

    def _source_rank(self) -> int:
        return self._work._source_rank()


class Waits:
    """Waits that gloo has no way to end, for when the group breaks: those for a message from any rank."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._broken = False
        self._under_way: set[Future[bool]] = set()

    def break_off(self) -> None:
        """Those under way, and later ones, end at once."""
        with self._lock:
            self._broken = True
            for outcome in self._under_way:
                outcome.cancel()

    def __call__(self, wait: Callable[[], bool]) -> bool | None:
        """What `wait` returns or raises; None when it is broken off, which leaves its thread waiting."""
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
        self, work: Work, diagnose: Callable[[], InaggError | None], call: TalliedCall, waits: Waits
    ) -> None:
        super().__init__(work, diagnose, call)
        self._waits = waits

    def _wait(self, timeout: timedelta) -> bool:
        done = self._waits(lambda: super(AnySourceWork, self)._wait(timeout))
        if done is None:
            raise self._diagnose() or RuntimeError("the group was broken off while this waited for a message")
        return done
