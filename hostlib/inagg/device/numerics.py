# SPDX-License-Identifier: Apache-2.0
"""Converts blocks of float32 to lanes and back on any device (docs/protocol.md, 3 and 4), bit-identical to the core.

Each function makes a few torch calls on many blocks at once, queued without waiting for the device. `elements` are
always [n, L]: n blocks of L float32, padded with zeros. The table has the bytes of device memory accessed for each
element; copies to and from the host add the lanes (W/8 bytes each):

| | launches | W = 32 | W = 16 | W = 8 |
|---|---|---|---|---|
| `Scan.blocks` | 13 | 35 | 35 | 35 |
| `quantise`, nearest | 3 | 24 | 22 | 21 |
| `quantise`, stochastic | about 105 | 300 | 300 | 300 |
| `write_lanes` | 3 to 5 | 28 | 14 | 3 |
| `residual` | 2 | 28 | 26 | 25 |
| `sums` | 3 | 24 | 14 | 9 |
| `sums`, the mean | 4 | 32 | 22 | 17 |

Exactness. A product with a power of two is computed in float64, where it is exact, and rounded once, to float32. The
product of an element and 2^(F-E) is a float32 unless it rounds to the lane 0. The product of a lane's sum (an integer
below 2^31) and 2^(E-F) is rounded where the core rounds it. CUDA divides by a host scalar by multiplying with its
reciprocal, so divisors are device tensors. Integers wrap around.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from inagg._core import CONSTANTS, guard_bits
from inagg.options import LaneBits

SPECIAL = 0x8000  # flag in a block's code, as in `Staging`: the block has elements that travel apart

_BIAS = CONSTANTS["EXPONENT_BIAS"]
_WORD_BYTES = CONSTANTS["WORD_BYTES"]
_MAGNITUDE = 0x7FFFFFFF
NO_LIMIT = _MAGNITUDE  # no magnitude has larger bits
_INFINITE = 0x7F800000  # magnitudes from here on are infinities and NaNs
_ABOVE_FINITE = (1 << 31) - _INFINITE
_LEAST_NORMAL = 1 << 23
_OUTLIER_SHARE, _OUTLIER_BINADES = 2, 20  # as in the core
_SIGNED = {8: torch.int8, 16: torch.int16, 32: torch.int32}


@dataclass(frozen=True)
class Lanes:
    """The lane format of a job of `workers` with packets of `words` words: F, B and L of the protocol."""

    bits: LaneBits
    workers: int
    words: int

    @property
    def fraction_bits(self) -> int:
        return self.bits - 1 - guard_bits(self.workers)

    @property
    def bias(self) -> int:
        return 1 << self.fraction_bits

    @property
    def block_elements(self) -> int:
        return self.words * _WORD_BYTES * 8 // self.bits

    def blocks(self, elements: int) -> int:
        return -(-elements // self.block_elements)

    def round_up(self, stochastic: bool) -> int:
        """What to add to the bits of a magnitude so that its exponent is that of the rounded lane."""
        one = 1 << max(0, 24 - self.fraction_bits)
        return 0 if one == 1 else one - 1 if stochastic else one // 2

    def wrapped(self, value: int) -> int:
        """`value` modulo 2^W, as a signed integer of W bits holds it."""
        half = 1 << (self.bits - 1)
        return (value + half) % (2 * half) - half

    def signed_exponents(self, codes: NDArray[np.uint16]) -> NDArray[np.int64]:
        """F - E for each block's code; 0 for blocks without a finite non-zero element."""
        known = (codes & ~np.uint16(SPECIAL)).astype(np.int64)
        return np.where(known == 0, 0, self.fraction_bits - (known - _BIAS))

    def up(self, codes: NDArray[np.uint16]) -> NDArray[np.float64]:
        """2^(F-E) for each block's code: the factor of the elements."""
        return np.ldexp(1.0, self.signed_exponents(codes))

    def down(self, codes: NDArray[np.uint16]) -> NDArray[np.float64]:
        """2^(E-F) for each block's code: the factor of lanes and of their sums."""
        return np.ldexp(1.0, -self.signed_exponents(codes))


def blocks_of(flat: torch.Tensor, first: int, last: int, size: int) -> torch.Tensor:
    """The blocks `first` to `last` (exclusive) of a one-dimensional tensor, [last - first, size].

    A view, or a copy padded with zeros if the last block is short.
    """
    part = flat[first * size : last * size]
    missing = (last - first) * size - part.numel()
    return (torch.nn.functional.pad(part, (0, missing)) if missing else part).view(-1, size)


class Scan:
    """Computes the codes of `blocks` blocks, which may come in any portions.

    Args:
        stochastic: whether the blocks will be rounded stochastically, which needs other exponents.
    """

    def __init__(self, lanes: Lanes, blocks: int, device: torch.device, stochastic: bool = False) -> None:
        self._extremes = torch.zeros(2, blocks, dtype=torch.int32, device=device)
        self._wide = torch.zeros(blocks, dtype=torch.bool, device=device)
        self._round_up = lanes.round_up(stochastic)

    def blocks(self, elements: torch.Tensor, first: int) -> None:
        """Scan `elements`, the blocks first, first + 1..."""
        # This addition keeps the order of finite magnitudes and wraps infinities and NaNs to negative numbers. So the
        # maximum gives the exponent, and a negative minimum a special block.
        magnitudes = torch.bitwise_and(elements.view(torch.int32), _MAGNITUDE).add_(_ABOVE_FINITE)
        least, greatest = self._extremes[:, first : first + elements.shape[0]]
        torch.aminmax(magnitudes, dim=1, out=(least, greatest))
        # It adds one to the field of the exponent, so it commutes with the cut to whole binades.
        bound = torch.bitwise_and(greatest, _INFINITE).sub_(_OUTLIER_BINADES * _LEAST_NORMAL).unsqueeze(1)
        normal = magnitudes >= _ABOVE_FINITE + _LEAST_NORMAL
        counted = normal.sum(1)
        small = (magnitudes < bound).logical_and_(normal).sum(1)
        wide = self._wide[first : first + elements.shape[0]]
        torch.ge(small.mul_(_OUTLIER_SHARE), counted.clamp_(min=1), out=wide)

    def codes(self) -> torch.Tensor:
        """[blocks], int16: the bits of wire codes, with SPECIAL set for blocks with elements that travel apart.

        A code is that of all finite elements, outliers or not.
        """
        least, greatest = self._extremes
        finite = greatest.clamp(min=_ABOVE_FINITE).sub_(_ABOVE_FINITE)
        # In float64 all are normal numbers. The carry of a significand that rounds up goes into the exponent.
        pattern = finite.view(torch.float32).to(torch.float64).view(torch.int64)
        exponents = pattern.add_(self._round_up << 29).bitwise_right_shift_(52)
        codes = torch.where(exponents == 0, 0, exponents + (_BIAS - 1022))
        return torch.where((least < 0).logical_or_(self._wide), codes - SPECIAL, codes).to(torch.int16)


def quantise(
    elements: torch.Tensor,
    up: torch.Tensor,
    lanes: Lanes,
    *,
    limit: torch.Tensor | None = None,
    seed: int | None = None,
    first_element: int = 0,
) -> torch.Tensor:
    """The integers q of blocks, as signed integers of W bits.

    Args:
        up: float64 [n, 1], from agreed codes that are not less than the blocks' own.
        limit: int32 [n, 1], bits: elements of larger magnitudes count as zero. None: there are none.
        seed: of stochastic rounding; None rounds to nearest.
        first_element: index of the first element in its tensor, a multiple of 4.
    """
    elements = within(elements, limit)
    values = torch.empty_like(elements)
    torch.mul(elements, up, out=values)
    if seed is None:
        return values.round_().to(_SIGNED[lanes.bits])
    truncated = values.trunc()
    draws = draw(seed, first_element // 4, elements.numel() // 4, elements.device).view(elements.shape)
    threshold = draws.mul_(2).add_(1).to(torch.float32).mul_(2.0**-17)
    away = ((values - truncated).abs_() > threshold).to(torch.float32)
    return truncated.add_(away.copysign_(values)).to(_SIGNED[lanes.bits])


def within(elements: torch.Tensor, limit: torch.Tensor | None) -> torch.Tensor:
    """The elements, with zeros for those beyond the limit (as for `quantise`)."""
    if limit is None:
        return elements
    return torch.where(torch.bitwise_and(elements.view(torch.int32), _MAGNITUDE) <= limit, elements, 0)


def write_lanes(quantised: torch.Tensor, lanes: Lanes, words: torch.Tensor) -> torch.Tensor:
    """Write the lanes of integers that `quantise` returned.

    Args:
        words: uint8 [n, words * 256], the output; the row stride is a multiple of 4 bytes.

    Returns:
        The checksums, [n]: the bits of uint32 in int32.
    """
    checksums = quantised.sum(dim=1, dtype=torch.int64).add_(lanes.block_elements * lanes.bias)
    place = words.view(_SIGNED[lanes.bits])
    if lanes.bits == 8:
        torch.add(quantised, lanes.wrapped(lanes.bias), out=place)
    else:
        place.copy_(_reversed(quantised + lanes.wrapped(lanes.bias)))
    return checksums.to(torch.int32)


def residual(
    elements: torch.Tensor, quantised: torch.Tensor, down: torch.Tensor, *, limit: torch.Tensor | None = None
) -> torch.Tensor:
    """The residual of each element: x - q 2^(E-F), 0 beyond the limit (as for `quantise`)."""
    elements = within(elements, limit)
    left = torch.empty_like(elements)
    return torch.sub(elements, quantised * down, out=left)


def sums(
    words: torch.Tensor,
    down: torch.Tensor,
    lanes: Lanes,
    divisor: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The sums in the words of results, float32 [n, L], in `out` if given.

    Args:
        words: uint8 [n, words * 256]; the row stride is a multiple of 4 bytes.
        down: float64 [n, 1].
        divisor: N as float32 on the device, for the mean; None: the sum.
    """
    integers = _reversed(words.view(_SIGNED[lanes.bits])).sub_(lanes.wrapped(lanes.workers * lanes.bias))
    found = torch.empty(integers.shape, dtype=torch.float32, device=words.device) if out is None else out
    torch.mul(integers, down, out=found)
    return found if divisor is None else found.div_(divisor)


def _reversed(lanes: torch.Tensor) -> torch.Tensor:
    """A copy with the bytes of each lane reversed: between big-endian and this machine's byte order."""
    size = lanes.dtype.itemsize
    if size == 1:
        return lanes.clone(memory_format=torch.contiguous_format)
    rows, count = lanes.shape
    return lanes.view(torch.uint8).view(rows, count, size).flip(2).view(lanes.dtype).view(rows, count)


def draw(key: int, counter: int, count: int, device: torch.device) -> torch.Tensor:
    """Four random numbers for each of `count` counters from `counter` on: int32 from 0 to 2^16 - 1, [4 * count].

    Threefry2x32 with 13 rounds; hostlib/native/numerics/numerics.hpp has the source.
    """
    keys = [as_int32(key), as_int32(key >> 32), as_int32(0x1BD11BDA ^ key ^ (key >> 32))]
    counters = torch.arange(counter, counter + count, dtype=torch.int64, device=device)
    pair = torch.empty(count, 2, dtype=torch.int32, device=device)
    x = counters.to(torch.int32).add_(keys[0])
    y = counters.bitwise_right_shift_(32).to(torch.int32).add_(keys[1])
    low = torch.empty_like(y)
    for number in range(13):
        bits = (13, 15, 26, 6, 17, 29, 16, 24)[number % 8]
        x.add_(y)
        # The shift repeats the sign bit, so the mask removes it.
        torch.bitwise_right_shift(y, 32 - bits, out=low).bitwise_and_((1 << bits) - 1)
        y.bitwise_left_shift_(bits).bitwise_or_(low).bitwise_xor_(x)
        if number % 4 == 3:
            turn = number // 4 + 1
            x.add_(keys[turn % 3])
            y.add_(as_int32(keys[(turn + 1) % 3] + turn))
    torch.stack((x, y), dim=1, out=pair)
    return pair.view(torch.int16).view(-1).to(torch.int32).bitwise_and_(0xFFFF)


def as_int32(value: int) -> int:
    """`value` modulo 2^32, as a signed integer of 32 bits holds it."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)
