# SPDX-License-Identifier: Apache-2.0
"""Waits for a condition, with a deadline."""

import time
from collections.abc import Callable

# What a machine that runs several tests at once adds to a time that the documentation promises.
BUSY_S = 8.0


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 10.0) -> None:
    """Waits for a condition. Fails the test at the deadline and names `what` it waited for."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)
