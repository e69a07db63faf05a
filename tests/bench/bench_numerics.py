# SPDX-License-Identifier: Apache-2.0
"""How fast blocks become lanes and lanes become sums, beside memcpy: python tests/bench/bench_numerics.py

For each build of the inner loops that this machine can run, block after block as the engine does it: the time of all
blocks of a large array, in GB of float32 a second on one core. Medians of several rounds, all kinds in turn in each.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from inagg import _core

WORDS = 4


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def actions(array: NDArray[np.float32]) -> dict[str, Callable[[], object]]:
    """What is timed, over the whole array."""
    target = np.empty_like(array)

    def packing(lane_bits: _core.LaneBits) -> Callable[[], object]:
        return lambda: _core.pack_all(array, lane_bits=lane_bits, workers=4, words=WORDS)

    def unpacking(lane_bits: _core.LaneBits) -> Callable[[], object]:
        return lambda: _core.unpack_all(target, lane_bits=lane_bits, workers=4, words=WORDS)

    return {
        "memcpy": lambda: np.copyto(target, array),
        "exponent + quantise, 32 bits": packing(32),
        "exponent + quantise, 16 bits": packing(16),
        "dequantise, 32 bits": unpacking(32),
        "dequantise, 16 bits": unpacking(16),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--elements", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    array = np.random.default_rng(0).standard_normal(arguments.elements, dtype=np.float32)
    rows = []
    for build in _core.available_kernels():
        _core.use_kernels(build)
        timed = actions(array)
        times: dict[str, list[float]] = {name: [] for name in timed}
        for _ in range(arguments.rounds):
            for name, action in timed.items():
                times[name].append(seconds(action))
        copy = statistics.median(times["memcpy"])
        for name, measured in times.items():
            median = statistics.median(measured)
            rows.append(
                {
                    "kernels": build,
                    "step": name,
                    "GB_per_s": array.nbytes / median / 1e9,
                    "of_memcpy": copy / median,
                }
            )
    if arguments.json:
        print(
            json.dumps({"elements": arguments.elements, "rounds": arguments.rounds, "rows": rows}, indent=1)
        )
        return
    print(f"{arguments.elements:,} float32, {WORDS} words a block, medians of {arguments.rounds} rounds")
    for row in rows:
        print("{kernels:10} {step:28} {GB_per_s:6.1f} GB/s  {of_memcpy:5.2f} of memcpy".format(**row))


if __name__ == "__main__":
    main()
