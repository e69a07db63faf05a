# SPDX-License-Identifier: Apache-2.0
"""What an asynchronous sum returns: a ``torch.distributed.Work``."""

import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Lock
from typing import Protocol

import torch
from torch.distributed.distributed_c10d import Work

from inagg.device.streams import on_device
from inagg.dynamo import skip_dynamo
from inagg.errors import InaggError, WaitTimeoutError
from inagg.profile import profile_range
from inagg.spans import waiting
from inagg.thread_state import ThreadState

# torch passes a zero timedelta for a wait without a timeout.
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
    """A collective of one or more sums. It is finished when all its `parts` are.

    When `wait` has returned, or raised the work's error, the future is done, as with gloo: torchft adds callbacks then,
    and needs them to run at once. A future's callbacks run in the modes of torch of the thread that asked for it first
    (`ThreadState`).

    After a failure `wait` raises an InaggError. The C++ of DDP's reducer gets a RuntimeError with the same message from
    the future.

    Args:
        tensors: hold the result; the future's value, as DDP's reducer expects.
        parts: the sums.
        problem: why a tensor could not be submitted; None if all were.
    """

    def __init__(
        self, tensors: Sequence[torch.Tensor], parts: Sequence[Part], problem: InaggError | None = None
    ) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._parts = list(parts)
        self._problem = problem
        self._lock = Lock()  # guards _future, _trigger and _left
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._trigger: torch.futures.Future[None] | None = None  # of _future, until somebody completes it
        self._state: ThreadState | None = None  # of the thread that asked for the future
        self._left = len(self._parts)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Block until done. On a GPU, block until the result is queued, and make the current stream wait for it.

        Without a `timeout`, the group's timeout ends the job.

        Raises:
            InaggError: the sum failed.
            WaitTimeoutError: the sum is not done within `timeout`; it continues.
        """
        seconds = None if timeout <= _NO_TIMEOUT else timeout.total_seconds()
        end = None if seconds is None else time.monotonic() + seconds
        with profile_range("wait"), waiting():
            for part in self._parts:
                if not part.wait(None if end is None else max(0.0, end - time.monotonic())):
                    raise WaitTimeoutError(seconds or 0.0)
        self._complete_future()
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
        """Whether the result is there; on a GPU, whether the GPU has reached it."""
        return all(part.wait(0.0) for part in self._parts) and all(part.query() for part in self._parts)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> InaggError | None:
        """The error of the first part that has failed; None if no finished part has."""
        if self._problem is not None:
            return self._problem
        return next((part.error for part in self._parts if part.error is not None), None)

    def result(self) -> list[torch.Tensor]:
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        with self._lock:
            if self._future is not None:
                return self._future
            self._state = ThreadState()
            # With devices, callbacks run on their own streams, which first wait for the future's streams.
            self._trigger = torch.futures.Future(devices=[*self._devices()])
            # Only Python sees torch's Future.set_exception. C++ too sees an exception raised inside then().
            self._future = future = self._trigger.then(self._result)
        if all(part.wait(0.0) for part in self._parts):
            self._complete_future()
        else:
            for part in self._parts:
                part.on_finished(self._part_finished)
        return future

    def _part_finished(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._complete_future()

    def _complete_future(self) -> None:
        """Complete the future, if there is one, after all parts. It is done when this returns, on whatever thread."""
        with self._lock:
            trigger, self._trigger = self._trigger, None
            future, state = self._future, self._state
        if trigger is not None and state is not None:
            devices = self._devices()
            with state.restored(), on_device(devices[0] if devices else _CPU):
                trigger.set_result(None)
        elif future is not None and not future.done():
            # Another thread is about to complete it, and makes no callback of the program before.
            with contextlib.suppress(Exception):  # the work's error
                future.wait()

    def _devices(self) -> list[torch.device]:
        return list({part.device for part in self._parts if part.device.type != "cpu"})

    def _result(self, _trigger: torch.futures.Future[None]) -> list[torch.Tensor]:
        error = self.exception()
        if error is not None:
            raise error
        self._block_streams()
        return self._tensors

    def _block_streams(self) -> None:
        for part in self._parts:
            part.block_current_stream()
