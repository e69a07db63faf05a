# SPDX-License-Identifier: Apache-2.0
"""`inagg bench device`: measures sums of tensors on a GPU, what the GPU does in them, and steps of training.

Stages: for each lane width the GB/s of float32 that scan, pack and unpack process, by Triton's kernels and by torch's
operations, and the GB/s that a copy on the device reads. Kernels also pack to and unpack from pinned host memory, as in
sums; beside them is a copy of the same packets over the bus.

Sums: medians over the iterations of the slowest rank's time. The first `gpu_ranks` ranks have tensors on the device,
the others in host memory:
- gloo: torch's own group, with the same tensors;
- cpu: every rank's tensor is in host memory;
- auto, host, triton, torch: as `Options.device_sums`.

Overlap, of the largest tensor: the all-reduce, matrix products on the device that take about as long, and both at the
same time. With perfect overlap both take the maximum of the two, without overlap their sum.

Steps, if all ranks are on the device: DDP over gloo, and over inagg with lanes of 32 and of 8 bits.

A timeline is a trace of one sum for each lane width, by torch.profiler: copies, kernels, and the waits of the threads.
"""

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from inagg._core import CONSTANTS
from inagg.device.numerics import Lanes, Scan, quantise, sums, write_lanes
from inagg.device.streams import pinned_empty, record_current
from inagg.device.ways import triton_problem
from inagg.options import LaneBits
from inagg_contract.constants import INAGG_HEADER_BYTES
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.files import write_text
from inagg_testbed.network.testbed import Testbed

REPETITIONS = 20
SEED = 0  # of the floats that the stages read
LANE_BITS: tuple[LaneBits, ...] = (32, 8)  # of the sums
STAGES = ("copy", "scan", "pack", "unpack")
OVERLAP = ("sum_ms", "products_ms", "both_ms")
_PORTION = {"cuda": 1 << 25, "cpu": 1 << 20}  # elements: launching is no limit
_ON_THE_BUS = 1 << 22  # elements of a portion that crosses it
_START_UP_S, _SECONDS_PER_ROUND = 180.0, 10.0

DeviceName = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class DeviceBench:
    """What to measure.

    device: "cpu" treats CPU tensors as a GPU's. gpu_ranks: how many ranks have tensors on the device; all share it.
    elements: of the sums, float32. steps: whether to train.
    """

    device: DeviceName
    workers: int
    gpu_ranks: int
    elements: tuple[int, ...]
    iterations: int = 10
    steps: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.gpu_ranks <= self.workers:
            raise ConfigurationError(
                f"--gpu-ranks {self.gpu_ranks}: there are {self.workers} workers, and one at least is on the GPU"
            )
        if self.steps and self.gpu_ranks < self.workers:
            raise ConfigurationError(
                "--steps trains with all ranks on the GPU: add --gpu-ranks " + str(self.workers)
            )

    @property
    def ways(self) -> list[str]:
        """What sums are measured. Triton's interpreter, without a GPU, would measure Python."""
        triton = self.device == "cuda" and triton_problem(device_of(self.device)) is None
        return ["gloo", "cpu", "auto", "host", *(["triton"] if triton else []), "torch"]


def missing(device: DeviceName) -> str | None:
    """Why a device cannot be measured; None if it can."""
    if device == "cuda" and not torch.cuda.is_available():
        return "no CUDA GPU (or torch is built without CUDA): nothing is measured"
    return None


def device_of(name: DeviceName) -> torch.device:
    """The torch device: the first GPU for "cuda"."""
    return torch.device("cuda", 0) if name == "cuda" else torch.device("cpu")


def measure_stages(name: DeviceName, workers: int, words: int = 4) -> list[dict[str, Any]]:
    """A row for each lane width and way to make lanes, with the GB/s of the stages."""
    device = device_of(name)
    rows: list[dict[str, Any]] = []
    for bits in get_args(get_args(LaneBits)[0]):
        lanes = Lanes(bits, workers, words)
        if device.type == "cuda" and triton_problem(device) is None:
            rows.append({"lane_bits": bits, "by": "triton", **_by_triton(lanes, device, _PORTION[name])})
            rows.append({"lane_bits": bits, "by": "triton, over the bus", **_over_the_bus(lanes, device)})
        rows.append({"lane_bits": bits, "by": "torch", **_by_torch(lanes, device, _PORTION[name])})
    return rows


class _Portion:
    """Elements, and what the stages read and write."""

    def __init__(
        self, lanes: Lanes, device: torch.device, elements: int, empty: Callable[..., torch.Tensor]
    ) -> None:
        self.blocks = blocks = elements // lanes.block_elements
        draw = torch.Generator(device).manual_seed(SEED)
        self.flat = torch.randn(blocks * lanes.block_elements, device=device, generator=draw)
        self.back = torch.empty_like(self.flat)
        self.offset = INAGG_HEADER_BYTES
        stride = self.offset + lanes.words * CONSTANTS["WORD_BYTES"]
        self.packets = empty(blocks * stride // 4, torch.int32).view(blocks, -1)
        self.codes = empty(blocks, torch.int16)
        self.codes.fill_(CONSTANTS["EXPONENT_BIAS"] + 4)
        self.checksums = empty(blocks, torch.int32)

    def rates(self, calls: dict[str, Callable[[], object]]) -> dict[str, float]:
        """GB/s of float32, by stage."""
        return {
            name: self.flat.nbytes / 1e9 / _seconds(call, self.flat.device) for name, call in calls.items()
        }


def _by_triton(lanes: Lanes, device: torch.device, elements: int) -> dict[str, float]:
    portion = _Portion(
        lanes, device, elements, lambda size, dtype: torch.empty(size, dtype=dtype, device=device)
    )
    return portion.rates({"copy": lambda: portion.back.copy_(portion.flat), **_kernels(lanes, portion)})


def _over_the_bus(lanes: Lanes, device: torch.device) -> dict[str, float]:
    """Packets in pinned memory. `copy` is of a portion's packets, from the device."""
    portion = _Portion(lanes, device, _ON_THE_BUS, lambda size, dtype: pinned_empty(size, dtype, device))
    there = portion.packets.to(device)
    return portion.rates(
        {
            "copy": lambda: portion.packets.copy_(there, non_blocking=True),
            **_kernels(lanes, portion),
        }
    )


def _kernels(lanes: Lanes, portion: _Portion) -> dict[str, Callable[[], object]]:
    from inagg.device import by_triton

    place: dict[str, Any] = {
        "codes": portion.codes,
        "packets": portion.packets,
        "offset": portion.offset,
    }
    own = torch.empty_like(portion.codes)
    return {
        "scan": lambda: by_triton.scan(portion.flat, lanes, own, stochastic=False),
        "pack": lambda: by_triton.pack(
            portion.flat, 0, portion.blocks, lanes, **place, checksums=portion.checksums
        ),
        "unpack": lambda: by_triton.unpack(portion.back, 0, portion.blocks, lanes, **place),
    }


def _by_torch(lanes: Lanes, device: torch.device, elements: int) -> dict[str, float]:
    portion = _Portion(
        lanes, device, elements, lambda size, dtype: torch.empty(size, dtype=dtype, device=device)
    )
    codes = np.full(portion.blocks, CONSTANTS["EXPONENT_BIAS"] + 4, np.uint16)
    up, down = (torch.from_numpy(row).to(device).unsqueeze(1) for row in (lanes.up(codes), lanes.down(codes)))
    rows, back = (flat.view(portion.blocks, -1) for flat in (portion.flat, portion.back))
    words = portion.packets.view(torch.uint8)[:, portion.offset :]
    scan = Scan(lanes, portion.blocks, device)

    def scan_all() -> None:
        scan.blocks(rows, 0)
        scan.codes()

    return portion.rates(
        {
            "copy": lambda: back.copy_(rows),
            "scan": scan_all,
            "pack": lambda: write_lanes(quantise(rows, up, lanes), lanes, words),
            "unpack": lambda: sums(words, down, lanes, out=back),
        }
    )


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


def measure_sums(bench: DeviceBench, testbed: Testbed, timeline: Path | None = None) -> dict[str, Any]:
    """Measure on a testbed that is up. `timeline` is the file to write the trace to.

    Returns:
        `sums`, `overlap` and `steps`: rows of what was measured (`elements`, `lane_bits`, `way`), with `times_ms` of
        each iteration on its slowest rank and their median `ms`.

    Raises LauncherError.
    """
    found: dict[tuple[str, tuple[Any, ...]], list[list[float]]] = {}
    trace = testbed.results / "timeline.json"
    group = testbed.launch(
        [
            *(sys.executable, "-m", "inagg_testbed.bench.device_worker"),
            *(bench.device, str(bench.gpu_ranks), ",".join(map(str, bench.elements)), ",".join(bench.ways)),
            *(str(bench.iterations), "steps" if bench.steps else "-"),
            *(str(trace) if timeline is not None else "-", "{events}"),
        ],
        name=f"device-{len(testbed.groups) + 1}",
        workers=bench.workers,
    )

    def note(_rank: int, event: dict[str, Any]) -> None:
        found.setdefault((event["event"], tuple(event["what"].items())), []).append(event["times_ms"])

    rounds = (bench.iterations + 3) * len(bench.elements) * len(bench.ways)
    group.follow(note, timeout_s=_START_UP_S + _SECONDS_PER_ROUND * rounds, watch=testbed.services)
    rows: dict[str, Any] = {"sums": [], "overlap": [], "steps": []}
    for (kind, what), ranks in found.items():
        slowest = list(map(max, zip(*ranks, strict=True)))
        rows[kind].append({**dict(what), "times_ms": slowest, "ms": statistics.median(slowest)})
    if timeline is not None:
        write_text(timeline, trace.read_text())
    return rows


def stage_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: GB/s, and percent of a copy's."""
    body = [
        [str(row["lane_bits"]), row["by"], f"{row['copy']:.4g}"]
        + [f"{row[name]:.4g} ({row[name] / row['copy']:.0%})" for name in STAGES[1:]]
        for row in rows
    ]
    return ["lane bits", "by", "copy, GB/s", *STAGES[1:]], body


def sum_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: milliseconds by way, and the ratios of the default way to gloo and to tensors in host memory."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    keys = list(dict.fromkeys((row["elements"], row["lane_bits"]) for row in rows if row["lane_bits"]))
    ms = {(row["elements"], row["lane_bits"], row["way"]): row["ms"] for row in rows}
    body = []
    for elements, lane_bits in keys:
        times = {way: ms[elements, None if way == "gloo" else lane_bits, way] for way in ways}
        ratios = [f"{times[peer] / times['auto']:.2f}x" for peer in ("gloo", "cpu")]
        body.append([f"{elements:,}", str(lane_bits), *(f"{times[way]:.3g}" for way in ways), *ratios])
    names = {"gloo": "gloo, ms", "cpu": "host tensors", "auto": "device: auto"}
    return ["float32", "lanes", *(names.get(way, way) for way in ways), "over gloo", "over host"], body


def other_table(figures: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: overlap, and steps if there are some."""
    return ["", "ms"], [
        [row["way"], f"{row['ms']:.3g}"] for row in itertools.chain(figures["overlap"], figures["steps"])
    ]
