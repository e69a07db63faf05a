# SPDX-License-Identifier: Apache-2.0
"""Reads a reduction's operation, scale and timeout from torch's options."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

_ReduceOp: Any = dist.ReduceOp


@dataclass(frozen=True, slots=True)
class Operation:
    """A reduction's operation; `of` reads it from torch's options, or from a ReduceOp.

    is_sum: SUM, AVG or PREMUL_SUM. average: divides by the number of ranks. factor: multiplies each contribution first;
    None: 1. timeout_s: None for the group's. asynchronous: the caller may not wait at once.
    """

    is_sum: bool
    average: bool = False
    factor: float | torch.Tensor | None = None
    timeout_s: float | None = None
    asynchronous: bool = True

    @classmethod
    def of(cls, opts: Any) -> "Operation":
        operation = getattr(opts, "reduceOp", _ReduceOp.SUM if opts is None else opts)
        timeout = getattr(opts, "timeout", None)
        timeout_s = timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else None
        asynchronous = getattr(opts, "asyncOp", True)
        if operation == _ReduceOp.PREMUL_SUM:
            _, factor = operation.__getstate__()
            return cls(True, factor=factor, timeout_s=timeout_s, asynchronous=asynchronous)
        average = bool(operation == _ReduceOp.AVG)
        is_sum = average or bool(operation == _ReduceOp.SUM)
        return cls(is_sum, average, timeout_s=timeout_s, asynchronous=asynchronous)

    @property
    def is_sum_or_avg(self) -> bool:
        """SUM or AVG."""
        return self.is_sum and self.factor is None

    def scale_for(self, ranks: int) -> float | torch.Tensor | None:
        """The factor of each contribution if SUM must do the operation; None: 1."""
        return 1 / ranks if self.average else self.factor


def as_sum(opts: Any) -> Any:
    """The same options with the operation SUM."""
    if not hasattr(opts, "reduceOp"):
        return _ReduceOp.SUM
    copy = type(opts)()
    for name in ("timeout", "asyncOp", "rootRank", "rootTensor"):
        if hasattr(opts, name):
            setattr(copy, name, getattr(opts, name))
    copy.reduceOp = _ReduceOp.SUM
    return copy
