"""One sum under way, and the memory that it is in."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from inagg.counters import TalliedCall
from inagg.errors import ConfigurationError, InaggError

if TYPE_CHECKING:
    from inagg.device.staged import StagedSum
    from inagg.sums.session import Session

Callback = Callable[[], None]


class Reduction:
    """A sum under way or finished. Made by `Session.submit`.

    staged: the device's part of it, if there is one. What is finished is then queued there, and `hold_back` is what
    makes the program's own work wait for it.
    """

    def __init__(
        self,
        session: "Session",
        flat: torch.Tensor,
        memory: range,
        deliver: Callback | None,
        timeout_s: float,
        staged: "StagedSum | None" = None,
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
        self._staged = staged

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
        self._session.completers.watch(self, callback)

    def deliver_unasked(self) -> None:
        """Have the result brought to where it is wanted when it is there, also if nobody waits for it: a program that
        has dropped the Work may synchronise otherwise, and write to the tensor again."""
        if self._staged is None and self._deliver is not None:  # on a device its thread does so
            self.on_finished(lambda: None)

    def deliver(self) -> Exception | None:
        """The result to where it is wanted. Returns what went wrong with that on a device."""
        if self._staged is not None:
            return self._staged.wait_queued()
        if self._deliver is not None:
            self._deliver()
        return None

    @property
    def device(self) -> torch.device:
        return self.flat.device

    def reached(self) -> bool:
        """Whether the result of a finished sum is there, for the device too."""
        return self._staged is None or self.error is not None or self._staged.reached()

    def hold_back(self) -> None:
        """What this thread queues from now on, on its current stream of the device, comes after a finished sum."""
        if self._staged is not None:
            self._staged.hold_back()


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
