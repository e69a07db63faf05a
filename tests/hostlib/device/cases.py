# SPDX-License-Identifier: Apache-2.0
"""Blocks to convert to lanes and back, and what the C++ core makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from inagg import _core
from inagg.device.numerics import SPECIAL, Lanes

HEADER = 20
BIAS = _core.CONSTANTS["EXPONENT_BIAS"]
GREATEST_CODE = BIAS + 129
GREATEST_FINITE = _core.CONSTANTS["GREATEST_FINITE"]

EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.0**-149,
    -(2.0**-149),
    2.0**-126,
    2.0**-127 * 1.5,
    3.4028234663852886e38,
]
EDGES += [float(np.nextafter(np.float32(1), np.float32(up))) for up in (0, 2)]
SPECIALS = [float("nan"), float("inf"), float("-inf")]
floats = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-2, 2, width=32),
    st.sampled_from(EDGES),
)


@dataclass(frozen=True)
class Case:
    """Elements, the last block being short; how far each block's agreed exponent is above its own; a seed of stochastic
    rounding, None: to nearest."""

    lanes: Lanes
    array: NDArray[np.float32]
    louder: Sequence[int]
    seed: int | None

    @property
    def average(self) -> bool:
        """Whether the sums are divided, in half of the cases."""
        return self.lanes.workers % 2 == 0

    @property
    def blocks(self) -> list[NDArray[np.float32]]:
        size = self.lanes.block_elements
        return [self.array[first : first + size] for first in range(0, len(self.array), size)]


@dataclass(frozen=True)
class Converted:
    """What the core makes of a case. codes: as the device announces them. agreed: codes [K]. limits: [K]. lanes: bytes
    of each block. residual: of all elements. sums: of all elements, as if each rank's were these."""

    codes: list[int]
    agreed: NDArray[np.uint16]
    limits: NDArray[np.int32]
    lanes: list[bytes]
    checksums: list[int]
    residual: NDArray[np.float32]
    sums: NDArray[np.float32]


def converted(case: Case) -> Converted:
    lanes, seed, blocks = case.lanes, case.seed, case.blocks
    how: Any = {"lane_bits": lanes.bits, "workers": lanes.workers}
    own = [_core.block_exponent(block, **how, stochastic=seed is not None) for block in blocks]
    agreed = [
        min(found.code + more, GREATEST_CODE) if found.code else 0
        for found, more in zip(own, case.louder, strict=True)
    ]
    packed, left, sums = [], [], []
    for index, block in enumerate(blocks):
        exponent = agreed[index]
        packed.append(
            _core.quantise(
                block,
                exponent=exponent,
                **how,
                words=lanes.words,
                seed=seed,
                first_element=index * lanes.block_elements,
            )
        )
        out = np.full(len(block), 7, np.float32)
        _core.residual(block, packed[-1][0], exponent=exponent, **how, out=out)
        left.append(out)
        result, _ = _core.dequantise(
            packed[-1][0], elements=len(block), exponent=exponent, **how, average=case.average
        )
        sums.append(result)
    return Converted(
        # The core replaces the codes of blocks with elements that travel apart.
        codes=[
            _core.exponent_within(block, GREATEST_FINITE, **how, stochastic=seed is not None)
            | (SPECIAL if found.special or found.wide else 0)
            for block, found in zip(blocks, own, strict=True)
        ],
        agreed=np.array(agreed, np.uint16),
        limits=np.array([found.limit for found in own], np.int32),
        lanes=[words for words, _ in packed],
        checksums=[checksum for _, checksum in packed],
        residual=np.concatenate(left),
        sums=np.concatenate(sums),
    )


def bits(array: NDArray[np.float32]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(array).view(np.uint32)


@st.composite
def cases(draw: st.DrawFn, words: Sequence[int] = (4, 32)) -> Case:
    """A few blocks."""
    lanes = Lanes(draw(st.sampled_from([8, 16, 32])), draw(st.integers(1, 64)), draw(st.sampled_from(words)))
    size = lanes.block_elements
    count = draw(st.integers(1, 3))
    length = size * (count - 1) + draw(st.sampled_from([1, size - 1, size]))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    # Each block has a scale of its own, and a few elements that hypothesis has chosen.
    array = rng.standard_normal(length).astype(np.float32)
    scale = np.repeat(draw(st.lists(st.integers(-149, 126), min_size=count, max_size=count)), size)[:length]
    with np.errstate(over="ignore"):  # replaced below
        array = np.ldexp(array, scale).astype(np.float32)
        # Outliers, perhaps.
        array[:: draw(st.integers(2, 60))] *= np.float32(
            2.0 ** draw(st.sampled_from([0, 19, 20, 21, 22, 90]))
        )
    array[~np.isfinite(array)] = 1
    chosen = draw(st.lists(floats, max_size=8)) + draw(st.lists(st.sampled_from(SPECIALS), max_size=2))
    array[rng.integers(0, length, len(chosen))] = np.array(chosen, np.float32)
    # A last block without a finite non-zero element, perhaps.
    array[-size:] = draw(st.sampled_from([*[array[-size:]] * 3, 0, *SPECIALS]))
    louder = draw(st.lists(st.integers(0, 300), min_size=count, max_size=count))
    rounding = draw(st.one_of(st.none(), st.integers(0, 2**64 - 1)))
    return Case(lanes, array, louder, rounding)
