# SPDX-License-Identifier: Apache-2.0
"""Local SGD: ranks train alone for some steps."""

from collections.abc import Sequence
from typing import Any

import torch

from inagg_baselines.vector import Vector


class LocalExchange:
    """Local SGD (Stich: Local SGD converges fast and communicates little, ICLR 2019).

    After each `period` steps all ranks take the mean of their weights, by gloo's all-reduce; also at the end. Each
    optimizer keeps its state. Ranks take the same number of steps. With a period of 1 and SGD, also with momentum and
    weight decay, training equals synchronous training up to rounding.
    """

    def __init__(self, group: Any, period: int) -> None:
        """group: torch's gloo group, of all ranks."""
        self._group, self._period, self._steps = group, period, 0

    def start(self, parameters: Sequence[torch.Tensor]) -> None:
        """See Exchange."""
        self._vector = Vector(parameters, self._group)

    def after_step(self) -> None:
        """See Exchange."""
        self._steps += 1
        if self._steps % self._period == 0:
            self._vector.average()

    def finish(self) -> None:
        """See Exchange."""
        self._vector.average()
