# SPDX-License-Identifier: Apache-2.0
"""When a gradient is late, from when gradients have come before.

With each sum the ranks exchange when they have begun it, in seconds since the end of the step before. So all ranks see
the same mean, and have the same deadline. A rank that has just waited longer itself, because all ranks compute longer
or pause, gives the others more time.
"""

import math
from collections import deque

KEPT = 64  # steps
FEWEST = 4  # observations; with fewer there is no deadline


class Arrivals:
    """The arrivals at each bucket in the last steps.

    Args:
        quantile: of the steps' mean arrivals, from 0 to 1.
        factor: what comes after `factor` times the quantile is late.
    """

    def __init__(self, quantile: float, factor: float) -> None:
        self._quantile = quantile
        self._factor = factor
        self._means: dict[int, deque[float]] = {}  # by the index of the bucket

    def note(self, index: int, mean_s: float) -> None:
        """Note the mean of the programs that came."""
        self._means.setdefault(index, deque(maxlen=KEPT)).append(mean_s)

    def forget(self, index: int) -> None:
        """The bucket is another one from now on."""
        self._means.pop(index, None)

    def deadline(self, index: int, own_s: float = 0.0) -> float | None:
        """Seconds since the end of the step before; None while too little has been observed.

        own_s: when this rank came itself.
        """
        means = sorted(self._means.get(index, ()))
        if len(means) < FEWEST:
            return None
        return self._factor * max(own_s, means[math.ceil(self._quantile * len(means)) - 1])
