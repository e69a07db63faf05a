# SPDX-License-Identifier: Apache-2.0
"""Send at a steady rate from a thread, which goes before other processes: an attacker has a machine to itself."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_NICENESS = -15
_LONGEST_LAG_S = 0.05  # what a busy machine has held up longer is not made up for


@dataclass
class Sent:
    """What was sent, and in which time."""

    count: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """A second."""
        return self.count / self.seconds if self.seconds else 0.0

    def add(self, other: "Sent") -> None:
        """Add another time of sending."""
        self.count += other.count
        self.seconds += other.seconds


@contextmanager
def sending(send: Callable[[], int], rate: float) -> Iterator[Sent]:
    """Call `send`, which returns how much it has sent, in a thread so often that this makes `rate` a second. The result
    is known after the block."""
    sent, stop = Sent(), threading.Event()
    failed: list[Exception] = []

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        began = due = time.monotonic()
        try:
            while not stop.wait(max(0.0, due - time.monotonic())):
                count = send()
                sent.count += count
                due = max(due + count / rate, time.monotonic() - _LONGEST_LAG_S)
        except Exception as error:
            failed.append(error)
        sent.seconds = time.monotonic() - began

    thread = threading.Thread(target=work, name="sending")
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]
