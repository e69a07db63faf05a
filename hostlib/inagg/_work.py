"""What an asynchronous all-reduce gives back: a ``torch.distributed.Work``."""

from collections.abc import Sequence
from datetime import timedelta
from threading import Event, Lock

import torch
from torch.distributed.distributed_c10d import Work

from inagg.errors import InaggError

# torch passes a zero timedelta for "no timeout of its own".
_NO_TIMEOUT = timedelta(0)


class AllReduceWork(Work):
    """An all-reduce of some tensors, finished when each of its `parts` has reported.

    The future carries the tensors, as DDP's reducer expects. A failure reaches a Python caller of `wait` as the
    InaggError it is, and the C++ of the reducer, through the future, as a RuntimeError with its message.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], parts: int) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._lock = Lock()  # guards _left and _error
        self._left = parts
        self._error: InaggError | None = None
        self._done = Event()
        self._trigger: torch.futures.Future[None] = torch.futures.Future()
        # torch's Future.set_exception is seen by Python alone; an exception raised inside then() is seen by C++ too.
        self._future = self._trigger.then(self._result)
        if parts == 0:
            self._finish()

    def part_done(self, error: InaggError | None) -> None:
        """One part has finished. The last one, successful or not, finishes the work."""
        with self._lock:
            self._left -= 1
            self._error = self._error or error
            last = self._left == 0
        if last:
            self._finish()

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Block until done.

        Raises:
            InaggError: what went wrong.
            TimeoutError: not done within `timeout`; the all-reduce goes on.
        """
        seconds = None if timeout == _NO_TIMEOUT else timeout.total_seconds()
        if not self._done.wait(seconds):
            raise TimeoutError(f"all-reduce not done after {seconds:g} s; it goes on")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> InaggError | None:
        return self._error

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self._future

    def _finish(self) -> None:
        self._done.set()
        self._trigger.set_result(None)

    def _result(self, _trigger: torch.futures.Future[None]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors
