# SPDX-License-Identifier: Apache-2.0
"""Records the spans of torch's part of a training: forward and backward passes, and steps of optimizers.

DDP's reducer waits for the sums of gradients in C++, at the end of the backward pass: it queues a callback with the
autograd engine. Callbacks run in the order in which they were queued. So a callback that is queued when the pass begins
runs when all gradients are computed, just before that wait.
"""

import functools
import threading
import time
from typing import Any

import torch
from torch.autograd import Variable
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from inagg.spans import OPTIMIZER, Recorder, Span


def watch_training(recorder: Recorder, *, ends_steps: bool = True) -> None:
    """Record from now on, for the life of the process.

    ends_steps: a step of the training ends when an optimizer's `step` does. False: the caller calls `end_step`.
    """
    begun = threading.local()

    def before_step(_optimizer: Any, _arguments: Any, _settings: Any) -> None:
        begun.at_s = time.monotonic()

    def after_step(_optimizer: Any, _arguments: Any, _settings: Any) -> None:
        now_s = time.monotonic()
        recorder.add(Span(OPTIMIZER, begun.at_s, now_s))
        if ends_steps:
            recorder.end_step(now_s)

    register_optimizer_step_pre_hook(before_step)
    register_optimizer_step_post_hook(after_step)
    _watch_backward(recorder)


def _watch_backward(recorder: Recorder) -> None:
    backward = torch.autograd.backward

    @functools.wraps(backward)
    def watched(tensors: Any, *arguments: Any, **settings: Any) -> None:
        computed: list[float] = []
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        root = next((each for each in roots if isinstance(each, torch.Tensor) and each.requires_grad), None)
        hook: Any = None
        if root is not None:
            hook = root.register_hook(functools.partial(_queue, computed))  # type: ignore[no-untyped-call]
        begin_s = time.monotonic()
        try:
            backward(tensors, *arguments, **settings)
        finally:
            end_s = time.monotonic()
            if hook is not None:
                hook.remove()
            recorder.backward(begin_s, min([*computed, end_s]), end_s)

    torch.autograd.backward = watched  # Tensor.backward looks it up there at each call


def _queue(computed: list[float], _gradient: torch.Tensor) -> None:
    """A hook of the root: have the engine note when the gradients are computed."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(lambda: computed.append(time.monotonic()))
