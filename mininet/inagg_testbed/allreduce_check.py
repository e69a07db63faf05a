"""Inputs of the all-reduce benchmark whose sum is known exactly, and how far a result may be from it.

Inputs look like gradients (normal, mean 0, all 24 bits of a float32 in use) but lie on a grid of 2^-40 within -8
and 8, so that every float64 sum of up to 64 of them is exact. Each iteration takes another window of them: a result
left over from the iteration before is wrong.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

GRID_BITS = 40
LARGEST = 8.0
FLOAT32_UNIT = 2.0**-24
FLOAT32_FLOOR = 2.0**-150

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """How a result compares: its greatest error, the loosest bound, the first element beyond its own bound."""

    max_abs_error: float
    bound: float
    wrong_index: int | None


def contribution(seed: int, rank: int, length: int) -> Float32:
    """What `rank` contributes: float32, the same for the same seed."""
    values = np.random.default_rng([seed, rank]).standard_normal(length)
    return np.clip(np.rint(values * 2.0**GRID_BITS) / 2.0**GRID_BITS, -LARGEST, LARGEST).astype(np.float32)


class Expectation:
    """The exact sum over all ranks, element by element, and what the bounds need besides."""

    def __init__(self, seed: int, workers: int, length: int) -> None:
        self.workers = workers
        self.total = np.zeros(length)
        self.magnitude = np.zeros(length)
        self.largest = np.zeros(length, dtype=np.float32)
        for rank in range(workers):
            values = contribution(seed, rank, length)
            self.total += values
            np.abs(values, out=values)
            self.magnitude += values
            np.maximum(self.largest, values, out=self.largest)

    def compare(self, result: Float32, start: int, *, lane_bits: int | None, words: int) -> Comparison:
        """Compare the sum of elements start, start + 1, ... with the exact one.

        lane_bits None is a float32 sum in any order, else a sum in lanes of so many bits and packets of `words` words.
        """
        window = slice(start, start + len(result))
        if lane_bits is None:
            bound = float_sum_bound(self.magnitude[window], self.workers)
        else:
            block = words * 2048 // lane_bits
            bound = lane_sum_bound(self.total[window], self.largest[window], self.workers, lane_bits, block)
        error = np.abs(result.astype(np.float64) - self.total[window])
        beyond = ~(error <= bound)
        wrong = int(np.argmax(beyond)) if beyond.any() else None
        return Comparison(float(error.max(initial=0.0)), float(bound.max(initial=0.0)), wrong)


def float_sum_bound(magnitude: Float64, workers: int) -> Float64:
    """Bound of a float32 sum in any order: gamma(N-1) sum |x| (Higham, Accuracy and Stability, section 4.2)."""
    steps = (workers - 1) * FLOAT32_UNIT
    return steps / (1 - steps) * magnitude


def block_exponents(largest: Float32, fraction_bits: int, block: int) -> npt.NDArray[np.int64]:
    """The exponent of each block (docs/protocol.md, 3.2); that of an all-zero block is very small."""
    padded = np.zeros(-(-len(largest) // block) * block)
    padded[: len(largest)] = largest
    peak = padded.reshape(-1, block).max(axis=1)
    fraction, exponent = np.frexp(peak)
    rounds_up = np.rint(fraction * 2.0**fraction_bits) >= 2.0**fraction_bits
    exponents: npt.NDArray[np.int64] = np.where(peak > 0, exponent + rounds_up, -1000).astype(np.int64)
    return exponents


def lane_sum_bound(total: Float64, largest: Float32, workers: int, lane_bits: int, block: int) -> Float64:
    """The bound of docs/protocol.md, 3.4, for each element."""
    fraction_bits = lane_bits - 1 - (workers - 1).bit_length()
    exponents = np.repeat(block_exponents(largest, fraction_bits, block), block)[: len(total)]
    quantisation = workers * np.exp2(exponents - fraction_bits - 1.0)
    bound: Float64 = quantisation + FLOAT32_UNIT * (np.abs(total) + quantisation) + FLOAT32_FLOOR
    return bound
