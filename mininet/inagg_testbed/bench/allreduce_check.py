# SPDX-License-Identifier: Apache-2.0
"""Inputs of the all-reduce benchmark with exactly known sums, and error bounds of the results.

Inputs resemble gradients (normal, mean 0, all significant bits of the type in use) but lie on a grid of 2^-40 within -8
and 8, so that a float64 sum of up to 64 of them is exact. They repeat with PERIOD, which is odd and longer
than the elements of a packet: so results in which two packets are swapped are wrong. Each iteration uses another window
of the inputs: so a result of the previous iteration is wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from inagg_testbed.bench.element_types import ELEMENT_TYPES, ElementType

GRID_BITS = 40
LARGEST = 8.0
PERIOD = 2**20 - 3  # a prime
FLOAT32 = ELEMENT_TYPES["float32"]
_PIECE = 2**17  # elements compared at once: their float64 temporaries stay in the cache

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """A result's greatest error, the greatest bound, and the first element beyond its own bound (None: none)."""

    max_abs_error: float
    bound: float
    wrong_index: int | None


def inputs(seed: int) -> str:
    """A description of the ranks' inputs."""
    return (
        f"normal floats (mean 0, standard deviation 1) on a grid of 2^-{GRID_BITS}, repeating after {PERIOD:,};"
        f" seed {seed}"
    )


def one_period(seed: int, rank: int, kind: ElementType = FLOAT32) -> Float32:
    """One period of the inputs of `rank`: PERIOD numbers of the type `kind`, determined by the seed."""
    values = np.random.default_rng([seed, rank]).standard_normal(PERIOD)
    on_grid = np.clip(np.rint(values * 2.0**GRID_BITS) / 2.0**GRID_BITS, -LARGEST, LARGEST)
    return rounded(on_grid.astype(np.float32), kind)


def rounded(values: Float32, kind: ElementType) -> Float32:
    """Finite numbers, rounded to the nearest of a type, ties to even."""
    if kind.name == "float16":
        return values.astype(np.float16).astype(np.float32)
    dropped = FLOAT32.significant_bits - kind.significant_bits
    if dropped == 0:
        return values
    pattern = values.view(np.uint32)
    odd = (pattern >> dropped) & 1
    kept = (pattern + ((1 << (dropped - 1)) - 1) + odd) >> dropped << dropped
    return kept.view(np.float32)


def fill(target: npt.NDArray[Any], period: npt.NDArray[Any], start: int) -> None:
    """Fill `target` with the elements start, start + 1, ... of the sequence that repeats `period`."""
    done, position = 0, start % PERIOD
    while done < len(target):
        count = min(PERIOD - position, len(target) - done)
        target[done : done + count] = period[position : position + count]
        done, position = done + count, 0


def window(period: npt.NDArray[Any], start: int, length: int) -> npt.NDArray[Any]:
    """`length` elements, from `start` on, of the sequence that repeats `period`."""
    target = np.empty(length, dtype=period.dtype)
    fill(target, period, start)
    return target


class Expectation:
    """One period of the exact sum over all ranks, of the sum of magnitudes, and of the largest magnitude."""

    def __init__(self, seed: int, workers: int, kind: ElementType = FLOAT32) -> None:
        self.workers = workers
        self.kind = kind
        self.total = np.zeros(PERIOD)
        self.magnitude = np.zeros(PERIOD)
        self.largest = np.zeros(PERIOD, dtype=np.float32)
        for rank in range(workers):
            values = one_period(seed, rank, kind)
            self.total += values
            np.abs(values, out=values)
            self.magnitude += values
            np.maximum(self.largest, values, out=self.largest)

    def exact(self, index: int) -> float:
        """The sum at one index."""
        return float(self.total[index % PERIOD])

    def compare(self, result: Float32, start: int, *, lane_bits: int | None, words: int) -> Comparison:
        """Compare the sum of elements start, start + 1, ... with the exact sum.

        lane_bits: lane width of a sum in packets of `words` words; None: a sum in the type, in any order.
        """
        block = 1 if lane_bits is None else words * 2048 // lane_bits
        largest_error, loosest, wrong = 0.0, 0.0, None
        for offset, piece in _pieces(result, block):
            total = window(self.total, start + offset, len(piece))
            if lane_bits is None:
                magnitude = window(self.magnitude, start + offset, len(piece))
                bound = float_sum_bound(magnitude, self.workers, self.kind)
            else:
                largest = window(self.largest, start + offset, len(piece))
                bound = lane_sum_bound(total, largest, self.workers, lane_bits, block, self.kind)
            error = np.abs(piece - total)
            beyond = ~(error <= bound)
            if wrong is None and beyond.any():
                wrong = offset + int(np.argmax(beyond))
            largest_error = float(np.maximum(largest_error, error.max()))  # keeps a NaN
            loosest = max(loosest, float(bound.max()))
        return Comparison(largest_error, loosest, wrong)


def _pieces(result: Float32, block: int) -> Iterator[tuple[int, Float32]]:
    """A result split at block boundaries into pieces, each with the index of its first element."""
    size = -(-_PIECE // block) * block
    for offset in range(0, len(result), size):
        yield offset, result[offset : offset + size]


def float_sum_bound(magnitude: Float64, workers: int, kind: ElementType = FLOAT32) -> Float64:
    """Error bound of a sum in any order: gamma(N-1) sum |x| (Higham, Accuracy and Stability, section 4.2)."""
    steps = (workers - 1) * kind.unit
    return steps / (1 - steps) * magnitude


def block_exponents(largest: Float32, fraction_bits: int, block: int) -> npt.NDArray[np.int64]:
    """The exponent of each block (docs/protocol.md, 3.2); -1000 for an all-zero block."""
    padded = np.zeros(-(-len(largest) // block) * block, dtype=np.float32)
    padded[: len(largest)] = largest
    peak = padded.reshape(-1, block).max(axis=1)
    fraction, exponent = np.frexp(peak.astype(np.float64))
    rounds_up = np.rint(fraction * 2.0**fraction_bits) >= 2.0**fraction_bits
    exponents: npt.NDArray[np.int64] = np.where(peak > 0, exponent + rounds_up, -1000).astype(np.int64)
    return exponents


def lane_sum_bound(
    total: Float64, largest: Float32, workers: int, lane_bits: int, block: int, kind: ElementType = FLOAT32
) -> Float64:
    """The error bound of docs/protocol.md, 3.4, for each element, and of a rounding to `kind`."""
    fraction_bits = lane_bits - 1 - (workers - 1).bit_length()
    exponents = block_exponents(largest, fraction_bits, block)
    quantisation = np.repeat(workers * np.exp2(exponents - fraction_bits - 1.0), block)[: len(total)]
    bound: Float64 = quantisation + FLOAT32.unit * (np.abs(total) + quantisation) + FLOAT32.floor
    if kind is not FLOAT32:
        bound += kind.unit * (np.abs(total) + bound) + kind.floor
    return bound
