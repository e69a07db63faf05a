"""One sum under way, and the memory that it is in."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from inagg._stats import TalliedCall
from inagg.errors import ConfigurationError, InaggError

if TYPE_CHECKING:
    from inagg._session import Session

Callback = Callable[[], None]


class Reduction:
    """A sum under way or finished. Made by `Session.submit`."""

    def __init__(
        self,
        session: "Session",
        flat: torch.Tensor,
        memory: range,
        deliver: Callback | None,
        timeout_s: float,
    ) -> None:
        self.error: InaggError | None = None
        self.finished = False
        self.flat = flat
        self.memory = memory
        self.ticket = 0
        self.callbacks: list[Callback] = []
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.tallied: TalliedCall | None = None
        self.finishing = threading.Lock()  # held while the result is delivered
        self._session = session
        self._deliver = deliver

    def wait(self, timeout_s: float | None) -> bool:
        """True when finished, with or without an error; False after timeout_s.

        None: never False. What is not done by the deadline then ends in an error, and so does the job.
        """
        if timeout_s is not None:
            return self._session.wait(self, timeout_s)
        if not self._session.wait(self, max(0.0, self.deadline - time.monotonic())):
            self._session.give_up(self)
            self._session.wait(self, None)
        return True

    def on_finished(self, callback: Callback) -> None:
        """Call it once when finished, on a thread of the session; at once, if the job has ended."""
        self._session.watch(self, callback)

    def deliver(self) -> None:
        """The result to where it is wanted."""
        if self._deliver is not None:
            self._deliver()


def written_memory_of(tensor: torch.Tensor) -> range:
    """The addresses of a tensor that is to hold a result.

    Raises:
        ConfigurationError: its elements share memory.
    """
    if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise ConfigurationError(
            "an expanded tensor cannot hold a sum: its elements share memory; clone() it"
        )
    return memory_of(tensor)


def memory_of(tensor: torch.Tensor) -> range:
    """The addresses from a tensor's first element to its last."""
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    if tensor.numel() == 0:
        return range(0)
    last = sum((size - 1) * stride for size, stride in extents)
    return range(tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size())
