# SPDX-License-Identifier: Apache-2.0
"""Throughput of the conversion from floats to lanes and back, next to memcpy: python -m tests.bench.numerics

Measures each build of the inner loops that this machine can run, on one core, block after block as the engine does it.
One array stays in the second-level cache, one does not. GB are of float32. Each round does each step once, in turn, and
memcpy (numpy's, to an array of the same size). Results are medians over the rounds.

exponent     the greatest magnitude of each block, and whether it holds a NaN or an infinity
quantise     scale, round to nearest even, pack, checksum
stochastic   the same with stochastic rounding
dequantise   unpack, checksum, scale, store
average      the same, divided by a number of workers that is a power of two
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from inagg import _core

WORDS = 4
WORKERS = 4
Step = Literal["exponent", "quantise", "stochastic", "dequantise", "average"]
SIZES = {"256 KiB": 65_536, "40 MB": 10_000_000}
BYTES_A_ROUND = 40_000_000  # a step repeats a smaller array until it has processed as many


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def actions(array: NDArray[np.float32], passes: int) -> dict[tuple[str, int], Callable[[], object]]:
    """The actions to time, by step and lane width (0 for memcpy)."""
    target = array.copy()
    # The exponent for 8-bit lanes and stochastic rounding is the largest, so it fits all steps.
    exponent = _core.block_exponent(array, lane_bits=8, workers=WORKERS, stochastic=True).code

    def copying() -> None:
        for _ in range(passes):
            np.copyto(target, array)

    def running(step: Step, lane_bits: _core.LaneBits) -> Callable[[], object]:
        # Steps that write floats use `target`, so that they do not change the next round's input.
        over = target if step in ("dequantise", "average") else array
        return lambda: _core.run_blocks(
            over, step, exponent=exponent, lane_bits=lane_bits, workers=WORKERS, words=WORDS, passes=passes
        )

    timed: dict[tuple[str, int], Callable[[], object]] = {("memcpy", 0): copying}
    for lane_bits in reversed(get_args(_core.LaneBits)):
        timed |= {(step, lane_bits): running(step, lane_bits) for step in get_args(Step)}
    return timed


def measure(elements: int, rounds: int) -> list[dict[str, Any]]:
    """Times all steps with the kernels in use; returns a row for each step and lane width."""
    array = np.random.default_rng(0).standard_normal(elements, dtype=np.float32)
    passes = max(1, BYTES_A_ROUND // array.nbytes)
    timed = actions(array, passes)
    times: dict[tuple[str, int], list[float]] = {what: [] for what in timed}
    for _ in range(rounds):
        for what, action in timed.items():
            times[what].append(seconds(action))
    copy = statistics.median(times["memcpy", 0])
    return [
        {
            "step": step,
            "lane_bits": lane_bits,
            "GB_per_s": array.nbytes * passes / median / 1e9,
            "ns_per_byte": median / array.nbytes / passes * 1e9,
            "of_memcpy": copy / median,
        }
        for (step, lane_bits), measured in times.items()
        for median in [statistics.median(measured)]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--kernels", choices=_core.available_kernels(), help="measure only these")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for kernels in [arguments.kernels] if arguments.kernels else _core.available_kernels():
        _core.use_kernels(kernels)
        for size, elements in SIZES.items():
            rows += [
                {"kernels": kernels, "array": size, **row} for row in measure(elements, arguments.rounds)
            ]
    if arguments.json:
        settings = {"words": WORDS, "workers": WORKERS, "rounds": arguments.rounds}
        print(json.dumps({**settings, "rows": rows}, indent=1))
        return
    print(f"blocks of {WORDS} words, {WORKERS} workers, medians of {arguments.rounds} rounds")
    print(f"{'kernels':10} {'array':8} {'lanes':>5} {'step':11} {'GB/s':>6} {'ns/B':>6} {'of memcpy':>9}")
    for row in rows:
        print(
            "{kernels:10} {array:8} {lane_bits:5} {step:11} {GB_per_s:6.1f} {ns_per_byte:6.3f} {of_memcpy:9.2f}".format(
                **row
            )
        )


if __name__ == "__main__":
    main()
