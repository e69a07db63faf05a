# SPDX-License-Identifier: Apache-2.0
"""Records the spans of torch's part of a training: forward and backward passes, and steps of optimizers.

DDP's reducer waits for the sums of gradients in C++, at the end of the backward pass: it queues a callback with the
autograd engine. Callbacks run in the order in which they were queued. So a callback that is queued when the pass begins
runs when all gradients are computed, just before that wait.
"""

import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import is_tensor_like

from inagg.spans import OPTIMIZER, Recorder, Span


def watch_training(recorder: Recorder, *, ends_steps: bool = True) -> None:
    """Record from now on, for the life of the process.

    ends_steps: a step of the training ends when an optimizer's `step` does. False: the caller calls `end_step`.
    """

    def after_step(_optimizer: Optimizer, begin_s: float, end_s: float) -> None:
        recorder.add(Span(OPTIMIZER, begin_s, end_s))
        if ends_steps:
            recorder.end_step(end_s)

    watch_optimizers(after_step)
    _watch_backward(recorder)


def watch_optimizers(act: Callable[[Optimizer, float, float], None]) -> None:
    """Call ``act(optimizer, begin_s, end_s)`` after each `step` of an optimizer, in its thread.

    A step within another optimizer's step is a part of it and is left out: ZeroRedundancyOptimizer calls the `step` of
    the optimizer that it wraps.
    """
    outermost = threading.local()  # optimizer: a weak reference to the one whose `step` runs; begin_s

    def before_step(optimizer: Optimizer, _arguments: Any, _settings: Any) -> None:
        under_way = _under_way(outermost)
        # After a step that raised, torch calls no post hook: the optimizer itself begins anew, or is gone.
        if under_way is None or under_way is optimizer:
            outermost.optimizer, outermost.begin_s = weakref.ref(optimizer), time.monotonic()

    def after_step(optimizer: Optimizer, _arguments: Any, _settings: Any) -> None:
        if _under_way(outermost) is optimizer:
            del outermost.optimizer
            act(optimizer, outermost.begin_s, time.monotonic())

    register_optimizer_step_pre_hook(before_step)
    register_optimizer_step_post_hook(after_step)


def _under_way(outermost: threading.local) -> Optimizer | None:
    reference: weakref.ref[Optimizer] | None = getattr(outermost, "optimizer", None)
    return None if reference is None else reference()


def _watch_backward(recorder: Recorder) -> None:
    """Record backward passes of the program's thread.

    A pass within another one is a part of it: reentrant checkpointing begins one in the engine's threads, which is the
    program's thread on CPUs.
    """
    backward = torch.autograd.backward
    under_way = False

    @functools.wraps(backward)
    def watched(tensors: Any, *arguments: Any, **settings: Any) -> None:
        nonlocal under_way
        if under_way or not recorder.is_programs():
            backward(tensors, *arguments, **settings)
            return
        if isinstance(tensors, GradientEdge) or is_tensor_like(tensors):  # type: ignore[no-untyped-call]
            tensors = (tensors,)
        roots = tuple(tensors)  # it may be an iterator
        computed: list[float] = []
        root = next((each for each in roots if isinstance(each, torch.Tensor) and each.requires_grad), None)
        hook: Any = None
        if root is not None:
            hook = root.register_hook(functools.partial(_queue, computed))  # type: ignore[no-untyped-call]
        under_way, begin_s = True, time.monotonic()
        try:
            backward(roots, *arguments, **settings)
        finally:
            end_s = time.monotonic()
            under_way = False
            if hook is not None:
                hook.remove()
            recorder.backward(begin_s, min([*computed, end_s]), end_s)

    torch.autograd.backward = watched  # Tensor.backward looks it up there at each call


def _queue(computed: list[float], _gradient: torch.Tensor) -> None:
    """A hook of the root: have the engine note when the gradients are computed."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(lambda: computed.append(time.monotonic()))
