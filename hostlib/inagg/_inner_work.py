# SPDX-License-Identifier: Apache-2.0
"""What a collective of the inner group gives back: gloo's Work, whose failure is told as what broke the group."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.distributed_c10d import Work

from inagg._stats import TalliedCall
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
        raise problem from error


class InnerWork(Work):
    """Gloo's `work`.

    When it fails because the group is broken, `wait` raises the InaggError that says why, from gloo's RuntimeError.
    The future is gloo's own.

    Args:
        diagnose: what broke the group, None if nothing did; asked when the work has failed, and may take a moment.
        call: to be told of the end, when somebody notices it.
    """

    def __init__(self, work: Work, diagnose: Callable[[], InaggError | None], call: TalliedCall) -> None:
        super().__init__()
        self._call = call
        self._work = work
        self._diagnose = diagnose

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        with told_as(self._diagnose, self._work.is_completed):
            done = self._work.wait() if timeout == _NO_TIMEOUT else self._work.wait(timeout)
        self._call.end()
        return done

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
