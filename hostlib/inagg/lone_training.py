# SPDX-License-Identifier: Apache-2.0
"""Warns if the ranks of a world train, and exchange nothing.

Some libraries wrap a model in DistributedDataParallel only if they know the backend's name. Under another name every
rank then trains a model of its own, without an error. This shows as optimizer steps with almost nothing exchanged
between them: less than one set of gradients in all collectives, in fewer calls than steps. A few metrics do not hide
it. Periodic averaging and parallel models, whose ranks exchange activations in each step, are not reported.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

_log = logging.getLogger(__name__)

FEWEST_STEPS = 3  # less is no training
LONG_ENOUGH = (
    1000  # steps after which a program that still runs is reported; averaging takes turns of up to 500
)
_EACH, _SELDOM = 10, 100  # the exchanged bytes are looked at in each of the first steps, then seldom

_WITHOUT_DATA = frozenset({"barrier", "monitored_barrier"})
# Ranks that call these share the model's layers or experts, and need not exchange gradients.
_OF_PARALLEL_MODELS = frozenset({"send", "recv", "recv_anysource", "all_to_all"})

Calls = Mapping[str, Mapping[str, float]]


class _Exchanged(NamedTuple):
    """Calls of collectives, their bytes, and whether they were those of a parallel model."""

    calls: float
    size: float
    parallel: bool


class TrainingWatch:
    """Counts optimizer steps of this process until `end`.

    Args:
        rank, size: this rank in the world, and the number of ranks.
        calls: the calls of each group so far: kind -> ``count`` and ``bytes``.
        sees_all: whether `calls` has all groups of the program; if not, nothing is reported.
    """

    def __init__(
        self, rank: int, size: int, calls: Callable[[], Iterable[Calls]], sees_all: Callable[[], bool]
    ) -> None:
        self._rank, self._size = rank, size
        self._calls = calls
        self._sees_all = sees_all
        self._steps = 0
        self._gradients = 0  # bytes
        self._first = self._last = _Exchanged(0, 0, False)
        self._last_step = 0
        self._reported = False
        self._hook = register_optimizer_step_post_hook(self._count)

    def end(self, failed: bool = False) -> None:
        """Stop counting, and report what was seen, unless the program has failed. May be called several times."""
        self._hook.remove()
        if not failed:
            self._report()

    def _count(self, optimizer: Optimizer, _arguments: object, _settings: object) -> None:
        if torch.compiler.is_compiling():
            return
        self._steps += 1
        if self._steps == 1:
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            self._gradients = sum(one.grad.nbytes for one in parameters if one.grad is not None)
            self._first = self._exchanged()
        elif self._steps <= _EACH or self._steps % _SELDOM == 0:
            self._last, self._last_step = self._exchanged(), self._steps
            if self._steps == LONG_ENOUGH:
                self._report()

    def _exchanged(self) -> _Exchanged:
        count = size = 0.0
        parallel = False
        for kinds in self._calls():
            for kind, call in kinds.items():
                if kind not in _WITHOUT_DATA:
                    count += call["count"]
                    size += call["bytes"]
                    parallel |= kind in _OF_PARALLEL_MODELS
        return _Exchanged(count, size, parallel)

    def _report(self) -> None:
        calls, size = self._last.calls - self._first.calls, self._last.size - self._first.size
        alone = (
            self._last_step >= FEWEST_STEPS
            and calls < self._last_step - 1
            and size < self._gradients
            and not self._last.parallel
        )
        if not alone or self._reported or self._rank != 0 or not self._sees_all():
            return
        self._reported = True
        _log.warning(
            "inagg: %d optimizer steps on each of %d ranks, and %d bytes in collectives between them: less than one "
            "set of gradients (%d bytes). It seems that each rank trains a model of its own. Is the model wrapped, in "
            "DistributedDataParallel or FSDP? Some libraries do that only for backends that they know by name; "
            "INAGG_TAKE_OVER=gloo,nccl keeps the name (docs/take-over.md).",
            self._last_step,
            self._size,
            size,
            self._gradients,
        )
