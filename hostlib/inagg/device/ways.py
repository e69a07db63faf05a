# SPDX-License-Identifier: Apache-2.0
"""Chooses who makes the lanes of a tensor: the core from a copy on the host, or the device.

A device saves bytes on the bus only if a lane has fewer than its element: not with 32 bits of float32, nor with 16 bits
of half floats. And it makes only the lanes of blocks whose exponents are agreed, some hundred KB at a time, each with a
launch and two wake-ups. So it is worth that only with narrower lanes, which are also more elements a packet for the
processor.
"""

import logging
import threading
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import numpy as np
import torch

from inagg.device.by_torch import TorchPortions
from inagg.device.numerics import Lanes
from inagg.device.streams import new_stream, on_device, record_current
from inagg.device.sums import Portions, SumMemory, SumRequest
from inagg.errors import ConfigurationError
from inagg.options import LaneBits, Options

_log = logging.getLogger(__name__)

Way = Literal["host", "triton", "torch"]

# With fewer elements a device's launches and wake-ups take longer than copies of the elements.
LEAST_FOR_KERNELS = 1 << 17


@dataclass(frozen=True)
class _Trial:
    """A sum to try. limit: larger elements count as zero."""

    lane_bits: LaneBits
    seed: int | None = None
    limit: float | None = None
    average: bool = False
    residual: bool = False


# The commonest, and one with everything that a sum can have.
_TRIALS = (_Trial(8), _Trial(16, seed=1, limit=0.75, average=True, residual=True))

_trying = threading.Lock()
_problems: dict[torch.device, str | None] = {}


def way_of(tensor: torch.Tensor, options: Options) -> Way | None:
    """Who makes the lanes of this tensor in a sum with these options; None: the core, from the tensor itself.

    Raises:
        ConfigurationError: `Options.device_sums` asks for Triton, which does not work; or a CUDA graph is captured.
    """
    device = tensor.device
    if device.type == "cpu" and not options.stage_cpu:
        return None
    if options.device_sums == "triton" and (problem := triton_problem(device)) is not None:
        raise ConfigurationError(f"device_sums is triton, which does not work on {device}: {problem}")
    if options.device_sums != "auto":
        return options.device_sums
    narrow = options.lane_bits < 8 * tensor.element_size() and device.type == "cuda"
    worth_it = narrow and tensor.numel() >= LEAST_FOR_KERNELS
    return "triton" if worth_it and triton_problem(device) is None else "host"


def portions_of(way: Way) -> type[Portions]:
    """How a device makes lanes. `way` is not "host"."""
    if way == "torch":
        return TorchPortions
    from inagg.device.by_triton import TritonPortions

    return TritonPortions


def triton_problem(device: torch.device) -> str | None:
    """Why the kernels do not work on this device; None if they do.

    The first call for a device runs them on a few elements, which compiles them: some seconds on a machine that has not
    done so yet. A reason is logged then.
    """
    if device not in _problems:
        record_current(device)  # a captured graph cannot have what follows, and must not count as a problem
        with _trying:
            if device not in _problems:
                try:
                    _problems[device] = _try(device)
                except torch.OutOfMemoryError:
                    return "there is no memory to try it"
    return _problems[device]


def _try(device: torch.device) -> str | None:
    if find_spec("triton") is None:
        return "it is not installed"
    try:
        with torch.inference_mode(), on_device(device):
            same = all(
                _results(device, "triton", trial) == _results(device, "torch", trial) for trial in _TRIALS
            )
        problem = None if same else "its results differ from those of torch"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # such as a GPU or a C compiler that Triton does not know
        problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        _log.warning("inagg: sums on %s do without Triton: %s", device, problem)
    return problem


def _results(device: torch.device, way: Way, trial: _Trial) -> list[bytes]:
    """All that the kernels write for a few elements."""
    stream = new_stream(device)
    with stream.current():
        flat = torch.linspace(-1, 1, 3000, dtype=torch.float32, device=device)
        left = torch.zeros_like(flat) if trial.residual else None
        memory = SumMemory(flat.numel(), Lanes(trial.lane_bits, 3, 4), trial.seed, device)
        request = SumRequest(flat, results=(), memories=(), average=trial.average, residual=left)
        if trial.limit is not None:
            memory.staging.limits[:] = np.float32(trial.limit).view(np.int32)
        portions, blocks = portions_of(way)(request, memory), memory.staging.blocks
        try:
            portions.scan()
            stream.record().synchronize()
            memory.agreed.copy_(memory.exponents)
            portions.pack(0, blocks)
            portions.unpack(0, blocks)
        finally:
            stream.record().synchronize()  # before the memory is let go of
        words = memory.packets[:, memory.staging.offset // 4 :].contiguous()
        found = [words, memory.checksums, memory.exponents, flat, *([] if left is None else [left])]
        return [one.cpu().numpy().tobytes() for one in found]
