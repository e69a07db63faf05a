# SPDX-License-Identifier: Apache-2.0
"""Blocks of float32 to lanes and back on any device (docs/protocol.md, 3 and 4), bit for bit as the core does it.

Everything is a few calls of torch on many blocks at once, queued without waiting for the device. `elements` are always
[n, L]: n blocks of L float32; padding is zeros. Bytes of the device's memory touched for each element, to which copies
to and from the host add the lanes (W/8 bytes, once each):

| | launches | W = 32 | W = 16 | W = 8 |
|---|---|---|---|---|
| `Scan.blocks` | 3 | 20 | 20 | 20 |
| `quantise`, nearest | 3 | 24 | 22 | 21 |
| `quantise`, stochastic | about 105 | 300 | 300 | 300 |
| `write_lanes` | 3 to 5 | 28 | 14 | 3 |
| `residual` | 2 | 28 | 26 | 25 |
| `sums` | 3 | 24 | 14 | 9 |
| `sums`, the mean | 4 | 32 | 22 | 17 |

Exactness. A product with a power of two is made in float64, where it is exact, and is rounded once, to float32: that of
an element and 2^(F-E) is a float32 unless it rounds to the lane 0; that of a lane's sum (an integer below 2^31) and
2^(E-F) is rounded where the core rounds it. CUDA divides by a scalar of the host by multiplying with its reciprocal,
so divisors are tensors on the device. Integers wrap around.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from inagg._core import CONSTANTS, guard_bits
from inagg.options import LaneBits

SPECIAL = 0x8000  # in a block's code, as `Staging` has it: a NaN or an infinity is in it

_BIAS = CONSTANTS["EXPONENT_BIAS"]
_WORD_BYTES = CONSTANTS["WORD_BYTES"]
_MAGNITUDE = 0x7FFFFFFF
_INFINITE = 0x7F800000  # magnitudes from here on are infinities and NaNs
_ABOVE_FINITE = (1 << 31) - _INFINITE
_SIGNED = {8: torch.int8, 16: torch.int16, 32: torch.int32}


@dataclass(frozen=True)
class Lanes:
    """How a job of `workers` with packets of `words` packs lanes of `bits`: the F, B and L of the protocol."""

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

    def wrapped(self, value: int) -> int:
        """`value` modulo 2^W, as a signed integer of W bits holds it."""
        half = 1 << (self.bits - 1)
        return (value + half) % (2 * half) - half

    def signed_exponents(self, codes: NDArray[np.uint16]) -> NDArray[np.int64]:
        """F - E for each of some blocks' codes; 0 for those that have no finite non-zero element."""
        known = (codes & ~np.uint16(SPECIAL)).astype(np.int64)
        return np.where(known == 0, 0, self.fraction_bits - (known - _BIAS))

    def up(self, codes: NDArray[np.uint16]) -> NDArray[np.float64]:
        """2^(F-E) for each of some blocks' codes: what elements are multiplied by."""
        return np.ldexp(1.0, self.signed_exponents(codes))

    def down(self, codes: NDArray[np.uint16]) -> NDArray[np.float64]:
        """2^(E-F): what lanes, and their sums, are multiplied by."""
        return np.ldexp(1.0, -self.signed_exponents(codes))


def blocks_of(flat: torch.Tensor, first: int, last: int, size: int) -> torch.Tensor:
    """The blocks `first` to `last` (exclusive) of a tensor of one dimension, [last - first, size]: a view, or a copy
    with zeros behind where the last block is a short one."""
    part = flat[first * size : last * size]
    missing = (last - first) * size - part.numel()
    return (torch.nn.functional.pad(part, (0, missing)) if missing else part).view(-1, size)


class Scan:
    """The codes of `blocks` blocks; blocks may come in any portions.

    Args:
        stochastic: whether they will be rounded stochastically: that takes other exponents.
    """

    def __init__(self, lanes: Lanes, blocks: int, device: torch.device, stochastic: bool = False) -> None:
        self._extremes = torch.zeros(2, blocks, dtype=torch.int32, device=device)
        dropped = max(0, 24 - lanes.fraction_bits)
        one = 1 << dropped
        self._round_up = 0 if dropped == 0 else one - 1 if stochastic else one // 2

    def blocks(self, elements: torch.Tensor, first: int) -> None:
        """Look at `elements`, blocks first, first + 1..."""
        # A rotation that keeps the order of finite magnitudes and brings the others, as negative numbers, below them:
        # so the two extremes tell both things.
        magnitudes = torch.bitwise_and(elements.view(torch.int32), _MAGNITUDE).add_(_ABOVE_FINITE)
        least, greatest = self._extremes[:, first : first + elements.shape[0]]
        torch.aminmax(magnitudes, dim=1, out=(least, greatest))

    def codes(self) -> torch.Tensor:
        """[blocks], int16: the bits of the codes on the wire, with SPECIAL where it is due."""
        least, greatest = self._extremes
        finite = greatest.clamp(min=_ABOVE_FINITE).sub_(_ABOVE_FINITE)
        # As float64 all are normal numbers; the carry of a significand that rounds up goes into the exponent.
        pattern = finite.view(torch.float32).to(torch.float64).view(torch.int64)
        exponents = pattern.add_(self._round_up << 29).bitwise_right_shift_(52)
        codes = torch.where(exponents == 0, 0, exponents + (_BIAS - 1022))
        return torch.where(least < 0, codes - SPECIAL, codes).to(torch.int16)


def quantise(
    elements: torch.Tensor,
    up: torch.Tensor,
    lanes: Lanes,
    *,
    special: bool,
    seed: int | None = None,
    first_element: int = 0,
) -> torch.Tensor:
    """The integers q of some blocks, as signed integers of W bits.

    Args:
        up: float64 [n, 1], of agreed codes no less than the blocks' own.
        special: a NaN or an infinity may be among the elements; they count as zero.
        seed: of stochastic rounding; None rounds to nearest. The blocks are elements first_element,
            first_element + 1... of their tensor; a multiple of 4.
    """
    if special:
        elements = torch.nan_to_num(elements, nan=0.0, posinf=0.0, neginf=0.0)
    values = torch.empty_like(elements)
    torch.mul(elements, up, out=values)
    if seed is None:
        return values.round_().to(_SIGNED[lanes.bits])
    whole = values.trunc()
    draws = draw(seed, first_element // 4, elements.numel() // 4, elements.device).view(elements.shape)
    threshold = draws.mul_(2).add_(1).to(torch.float32).mul_(2.0**-17)
    away = ((values - whole).abs_() > threshold).to(torch.float32)
    return whole.add_(away.copysign_(values)).to(_SIGNED[lanes.bits])


def write_lanes(quantised: torch.Tensor, lanes: Lanes, words: torch.Tensor) -> torch.Tensor:
    """The lanes of what `quantise` made.

    Args:
        words: uint8 [n, words * 256], written; rows may lie apart, by a multiple of 4 bytes.

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
    elements: torch.Tensor, quantised: torch.Tensor, down: torch.Tensor, *, special: bool
) -> torch.Tensor:
    """What the lanes leave out of each element: x - q 2^(E-F), 0 for a NaN or an infinity."""
    if special:
        elements = torch.nan_to_num(elements, nan=0.0, posinf=0.0, neginf=0.0)
    left = torch.empty_like(elements)
    return torch.sub(elements, quantised * down, out=left)


def sums(
    words: torch.Tensor,
    down: torch.Tensor,
    lanes: Lanes,
    divisor: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The sums that the words of results hold, float32 [n, L], in `out` if that is given.

    Args:
        words: uint8 [n, words * 256]; rows may lie apart, by a multiple of 4 bytes.
        down: float64 [n, 1].
        divisor: N in float32, on the device, if it is to be the mean.
    """
    integers = _reversed(words.view(_SIGNED[lanes.bits])).sub_(lanes.wrapped(lanes.workers * lanes.bias))
    found = torch.empty(integers.shape, dtype=torch.float32, device=words.device) if out is None else out
    torch.mul(integers, down, out=found)
    return found if divisor is None else found.div_(divisor)


def _reversed(lanes: torch.Tensor) -> torch.Tensor:
    """A copy with the bytes of each lane in the other order: between big-endian and this machine's order."""
    size = lanes.dtype.itemsize
    if size == 1:
        return lanes.clone(memory_format=torch.contiguous_format)
    rows, count = lanes.shape
    return lanes.view(torch.uint8).view(rows, count, size).flip(2).view(lanes.dtype).view(rows, count)


def draw(key: int, counter: int, count: int, device: torch.device) -> torch.Tensor:
    """The draws of `count` counters from `counter` on, four each: int32 from 0 to 2^16 - 1, [4 * count].

    Threefry2x32 with 13 rounds; hostlib/native/numerics/numerics.hpp has the source.
    """
    keys = [_int32(key), _int32(key >> 32), _int32(0x1BD11BDA ^ key ^ (key >> 32))]
    counters = torch.arange(counter, counter + count, dtype=torch.int64, device=device)
    pair = torch.empty(count, 2, dtype=torch.int32, device=device)
    x = counters.to(torch.int32).add_(keys[0])
    y = counters.bitwise_right_shift_(32).to(torch.int32).add_(keys[1])
    low = torch.empty_like(y)
    for number in range(13):
        bits = (13, 15, 26, 6, 17, 29, 16, 24)[number % 8]
        x.add_(y)
        torch.bitwise_right_shift(y, 32 - bits, out=low).bitwise_and_(
            (1 << bits) - 1
        )  # the shift keeps the sign
        y.bitwise_left_shift_(bits).bitwise_or_(low).bitwise_xor_(x)
        if number % 4 == 3:
            turn = number // 4 + 1
            x.add_(keys[turn % 3])
            y.add_(_int32(keys[(turn + 1) % 3] + turn))
    torch.stack((x, y), dim=1, out=pair)
    return pair.view(torch.int16).view(-1).to(torch.int32).bitwise_and_(0xFFFF)


def _int32(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)
