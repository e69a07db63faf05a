# SPDX-License-Identifier: Apache-2.0
"""The modes of torch that belong to a thread, taken over by the threads that call back a program's functions.

A callback of a future runs on the thread that adds it if the collective has ended, else on a thread of ours. With these
modes it does the same in both cases. A new thread has torch's defaults: with gradients, outside inference mode, without
autocast and without a default device.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

_AUTOCAST_DEVICES = ("cpu", "cuda")


class ThreadState:
    """The modes of the thread that makes this object: gradients, inference mode, autocast, function modes.

    `torch.set_default_device` and ``with torch.device(...)`` are function modes.
    """

    __slots__ = ("_autocast", "_functions", "_grad", "_inference")

    def __init__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocast = [
            (device, torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled())
            for device in _AUTOCAST_DEVICES
            if torch.is_autocast_enabled(device)
        ]
        self._functions: list[TorchFunctionMode] = []
        if torch._C._len_torch_function_stack():
            self._functions = list(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Put the calling thread into these modes in the block."""
        with contextlib.ExitStack() as undo:
            undo.enter_context(torch.inference_mode(self._inference))
            if not self._inference:  # inference mode has no gradients
                undo.enter_context(torch.set_grad_enabled(self._grad))
            for device, dtype, cached in self._autocast:
                undo.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=cached))
            for mode in self._functions:
                _push_mode(mode)  # type: ignore[no-untyped-call]
                undo.callback(_pop_mode)
            yield
