# SPDX-License-Identifier: Apache-2.0
"""`inagg bench device`: measures the GPU stages of a sum, compared with a copy, and all-reduces of tensors on the GPU.

The first table has for each lane width the GB/s of float32 that scan, pack and unpack process, each without the copies
to and from the host; and the GB/s that a copy on the device reads.

The second table has medians over the iterations of the slowest rank's time; all ranks share the device:
- cpu_ms, device_ms: an all-reduce of tensors in host memory, and on the device;
- compute_ms: matrix products on the device that take about as long as device_ms;
- both_ms: the all-reduce and the products at the same time. With perfect overlap both_ms is the maximum of device_ms
and
  compute_ms, without overlap their sum.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import torch

from inagg._core import CONSTANTS
from inagg.device.numerics import Lanes, Scan, quantise, sums, write_lanes
from inagg.device.by_torch import TorchPortions
from inagg.device.streams import record_current
from inagg.options import LaneBits
from inagg_testbed.network.testbed import Testbed

REPETITIONS = 20
SEED = 0  # of the floats that the stages read
FIGURES = ("cpu_ms", "device_ms", "compute_ms", "both_ms")
_START_UP_S = 180.0


def missing(device: str) -> str | None:
    """Why a device cannot be measured; None if it can."""
    if device == "cuda" and not torch.cuda.is_available():
        return "no CUDA GPU (or torch is built without CUDA): nothing is measured"
    return None


def measure_stages(name: str, workers: int, words: int = 4) -> list[dict[str, Any]]:
    """A row for each lane width, measured on portions of the size that sums use, on device "cuda" or "cpu"."""
    device = device_of(name)
    return [
        {"lane_bits": bits, **_stages(Lanes(bits, workers, words), device)}
        for bits in get_args(get_args(LaneBits)[0])
    ]


def device_of(name: str) -> torch.device:
    """The torch device: the first GPU for "cuda"."""
    return torch.device("cuda", 0) if name == "cuda" else torch.device("cpu")


def _stages(lanes: Lanes, device: torch.device) -> dict[str, float]:
    """GB/s of one portion, by stage."""
    blocks = TorchPortions.most // lanes.block_elements
    draw = torch.Generator(device).manual_seed(SEED)
    elements = torch.randn(blocks, lanes.block_elements, device=device, generator=draw)
    codes = np.full(blocks, CONSTANTS["EXPONENT_BIAS"] + 4, np.uint16)
    up, down = (torch.from_numpy(row).to(device).unsqueeze(1) for row in (lanes.up(codes), lanes.down(codes)))
    packed = torch.empty(blocks, lanes.words * CONSTANTS["WORD_BYTES"], dtype=torch.uint8, device=device)
    scan, back = Scan(lanes, blocks, device), torch.empty_like(elements)

    def scan_all() -> None:
        scan.blocks(elements, 0)
        scan.codes()

    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: back.copy_(elements),
        "scan": scan_all,
        "pack": lambda: write_lanes(quantise(elements, up, lanes), lanes, packed),
        "unpack": lambda: sums(packed, down, lanes, out=back),
    }
    size = elements.nbytes / 1e9
    return {name: size / _seconds(call, device) for name, call in calls.items()}


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Mean seconds of one of many consecutive calls."""
    for _ in range(3):
        call()
    record_current(device).synchronize()
    start = time.perf_counter()
    for _ in range(REPETITIONS):
        call()
    record_current(device).synchronize()
    return (time.perf_counter() - start) / REPETITIONS


def measure_sums(testbed: Testbed, device: str, workers: int, elements: int) -> dict[str, list[float]]:
    """Measure all-reduces on a testbed that is up; by figure, the milliseconds of each iteration on its slowest rank.

    Raises LauncherError.
    """
    found: dict[str, list[list[float]]] = {name: [] for name in FIGURES}
    group = testbed.launch(
        [sys.executable, "-m", "inagg_testbed.bench.device_worker", device, str(elements), "{events}"],
        name=f"device-{len(testbed.groups) + 1}",
        workers=workers,
    )

    def note(_rank: int, event: dict[str, Any]) -> None:
        for name in FIGURES:
            found[name].append(event[name])

    group.follow(note, timeout_s=_START_UP_S, watch=testbed.services)
    return {name: list(map(max, zip(*ranks, strict=True))) for name, ranks in found.items()}


def stage_table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the first table: GB/s, and percent of a copy's."""
    body = [
        [str(row["lane_bits"]), f"{row['copy']:.2f}"]
        + [f"{row[name]:.2f} ({row[name] / row['copy']:.0%})" for name in ("scan", "pack", "unpack")]
        for row in rows
    ]
    return ["lane bits", "copy, GB/s", "scan", "pack", "unpack"], body


def medians(times_ms: dict[str, list[float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: statistics.median(times) for name, times in times_ms.items()}


def sum_table(figures: dict[str, float]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the second table, which has the medians."""
    header = ["all-reduce, host tensor", "device tensor", "products only", "both"]
    return header, [[f"{figures[name]:.1f} ms" for name in FIGURES]]
