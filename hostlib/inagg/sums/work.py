# SPDX-License-Identifier: Apache-2.0
"""What an asynchronous sum gives back: a ``torch.distributed.Work``."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Lock
from typing import Protocol

import torch
from torch.distributed.distributed_c10d import Work

from inagg.device.streams import on_device
from inagg.dynamo import skip_dynamo
from inagg.errors import InaggError
from inagg.profile import profile_range

# torch passes a zero timedelta for "no timeout of its own".
_NO_TIMEOUT = timedelta(0)
_CPU = torch.device("cpu")


class Part(Protocol):
    """A sum: `inagg.sums.reduction.Reduction`."""

    @property
    def error(self) -> InaggError | None: ...

    def wait(self, timeout_s: float | None) -> bool: ...

    def on_finished(self, callback: Callable[[], None]) -> None: ...

    @property
    def device(self) -> torch.device: ...

    def query(self) -> bool: ...

    def block_current_stream(self) -> None: ...


@skip_dynamo
class SwitchWork(Work):
    """Sums that together are one collective, finished when each of its `parts` is.

    The future carries `tensors`, which hold the result, as DDP's reducer expects. A failure reaches a Python caller of
    `wait` as the InaggError it is, and the C++ of the reducer, through the future, as a RuntimeError with its message.

    Args:
        problem: why a tensor could not be submitted at all.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], parts: Sequence[Part], problem: InaggError | None = None
    ) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._parts = list(parts)
        self._problem = problem
        self._lock = Lock()  # guards _future and _left
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._left = len(self._parts)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Block until done. On a GPU: until the result is queued there; the current stream then waits for it.

        Raises:
            InaggError: what went wrong.
            TimeoutError: not done within `timeout`; the sum goes on. Without one, the group's timeout ends the job.
        """
        seconds = None if timeout <= _NO_TIMEOUT else timeout.total_seconds()
        end = None if seconds is None else time.monotonic() + seconds
        with profile_range("wait"):
            for part in self._parts:
                if not part.wait(None if end is None else max(0.0, end - time.monotonic())):
                    raise TimeoutError(f"sum not done after {seconds:g} s; it goes on")
        error = self.exception()
        if error is not None:
            raise error
        self._block_streams()
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is done, on a GPU too."""
        return all(part.wait(0.0) for part in self._parts) and all(part.query() for part in self._parts)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> InaggError | None:
        """The first error of those parts that are done."""
        if self._problem is not None:
            return self._problem
        return next((part.error for part in self._parts if part.error is not None), None)

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        with self._lock:
            if self._future is not None:
                return self._future
            # With devices callbacks run under streams of their own, which wait for those of the future before.
            devices = list({part.device for part in self._parts if part.device.type != "cpu"})
            trigger: torch.futures.Future[None] = torch.futures.Future(devices=[*devices])
            # torch's Future.set_exception is seen by Python alone; an exception raised inside then() by C++ too.
            self._future = trigger.then(self._result)

        def part_finished() -> None:
            with self._lock:
                self._left -= 1
                last = self._left == 0
            if last:
                with on_device(devices[0] if devices else _CPU):
                    trigger.set_result(None)

        for part in self._parts:
            part.on_finished(part_finished)
        if not self._parts:
            trigger.set_result(None)
        return self._future

    def _result(self, _trigger: torch.futures.Future[None]) -> list[torch.Tensor]:
        error = self.exception()
        if error is not None:
            raise error
        self._block_streams()
        return self._tensors

    def _block_streams(self) -> None:
        for part in self._parts:
            part.block_current_stream()
