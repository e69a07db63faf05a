# SPDX-License-Identifier: Apache-2.0
"""Fused kernels in Triton: scan, pack and unpack in one launch each, bit-identical to `inagg.device.numerics`.

A kernel reads and writes everything once. Packets, codes, limits and checksums may be in pinned host memory, which a
GPU accesses over the bus: so nothing has to be copied before or after a launch.

Each program of a kernel has a tile of `ROWS` blocks: [ROWS, COLUMNS] elements for scan, [ROWS, QUADS, 4] for pack (a
random draw serves four elements), [ROWS, WORDS, lanes of a word of 32 bits] for unpack. The second is rounded up to a
power of two, as Triton needs, and masked.

Exactness is that of `numerics`: a product with a power of two is exact in float64 and rounded once, to float32, or to
an integer by adding and subtracting 1.5 * 2^52.

`by_triton` launches them.
"""

import triton
import triton.language as tl

from inagg._core import CONSTANTS

# Kernels read global constants only as constexpr.
_EXPONENT_BIAS = tl.constexpr(CONSTANTS["EXPONENT_BIAS"])
_SPECIAL = tl.constexpr(0x8000)
_CODE = tl.constexpr(0x7FFF)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)
_INFINITE = tl.constexpr(0x7F800000)
_LEAST_NORMAL = tl.constexpr(1 << 23)
_OUTLIER_SHARE, _OUTLIER_BINADES = tl.constexpr(2), tl.constexpr(20)  # as in the core
_TO_INTEGER = tl.constexpr(1.5 * 2.0**52)
_FIRST_KEY_MIX = tl.constexpr(0x1BD11BDA)


@triton.jit
def _load(flat, index, mask, all_inside):
    """Elements, 0 where the mask is not set. Without a mask, 16 bytes an access whatever the tensor's size."""
    if all_inside:
        x = tl.load(flat + index)
    else:
        x = tl.load(flat + index, mask=mask, other=0.0)
    return x


# Of these arguments, different values need no other code.
@triton.jit(do_not_specialize=["elements", "blocks"], do_not_specialize_on_alignment=["codes"])
def scan(
    flat,
    elements,
    codes,
    blocks,
    ROUND_UP: tl.constexpr,
    L: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)[None, :]
    index = rows.to(tl.int64)[:, None] * L + columns
    all_inside = (L == COLUMNS) & ((tl.program_id(0) + 1).to(tl.int64) * (ROWS * L) <= elements)
    x = _load(flat, index, (columns < L) & (index < elements), all_inside)
    magnitude = x.to(tl.int32, bitcast=True) & _MAGNITUDE
    finite = tl.where(magnitude < _INFINITE, magnitude, 0)
    greatest = tl.max(finite, axis=1)
    special = tl.max(magnitude, axis=1) >= _INFINITE
    bound = ((greatest >> 23) - _OUTLIER_BINADES) << 23
    normal = finite >= _LEAST_NORMAL
    counted = tl.sum(normal.to(tl.int32), axis=1)
    small = tl.sum((normal & (finite < bound[:, None])).to(tl.int32), axis=1)
    wide = small * _OUTLIER_SHARE >= tl.maximum(counted, 1)
    # An integer below 2^23 is exact as a float, which normalises subnormals. The carry of a significand that rounds
    # up goes into the exponent.
    tiny = greatest < _LEAST_NORMAL
    pattern = tl.where(tiny, greatest.to(tl.float32).to(tl.int32, bitcast=True), greatest)
    exponent = ((pattern + ROUND_UP) >> 23) - tl.where(tiny, 149 + 126, 126)
    code = tl.where(greatest == 0, 0, exponent + _EXPONENT_BIAS)
    code = tl.where(special | wide, code | _SPECIAL, code)
    tl.store(codes + rows, code.to(tl.int16), mask=rows < blocks)


@triton.jit
def _power_of_two(exponent):
    """As float64, which has it as a normal number."""
    return ((exponent + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _signed_exponent(codes, rows, inside, F: tl.constexpr):
    """F - E for the codes of rows; 0 for blocks without a finite non-zero element."""
    code = tl.load(codes + rows, mask=inside, other=0).to(tl.int32) & _CODE
    return tl.where(code == 0, 0, F - (code - _EXPONENT_BIAS))


@triton.jit
def _reversed(lane, BITS: tl.constexpr):
    """The bytes of lanes of W bits reversed, 0 in the bits above."""
    if BITS == 8:
        return lane & 0xFF
    if BITS == 16:
        return ((lane & 0xFF) << 8) | ((lane >> 8) & 0xFF)
    return ((lane & 0xFF) << 24) | ((lane & 0xFF00) << 8) | ((lane >> 8) & 0xFF00) | ((lane >> 24) & 0xFF)


@triton.jit
def _mix(x, y, BITS: tl.constexpr):
    """One round of Threefry2x32."""
    x = x + y
    return x, ((y << BITS) | (y >> (32 - BITS))) ^ x


@triton.jit
def _four_mixes(x, y, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    x, y = _mix(x, y, A)
    x, y = _mix(x, y, B)
    x, y = _mix(x, y, C)
    return _mix(x, y, D)


@triton.jit
def _draw(counter, key_low, key_high):
    """Threefry2x32 with 13 rounds: two numbers of 32 bits for each counter of 64 bits, as `numerics.draw`."""
    first = key_low.to(tl.uint32)
    second = key_high.to(tl.uint32)
    third = first ^ second ^ _FIRST_KEY_MIX
    x = (counter & 0xFFFFFFFF).to(tl.uint32) + first
    y = (counter >> 32).to(tl.uint32) + second
    x, y = _four_mixes(x, y, 13, 15, 26, 6)
    x, y = _four_mixes(x + second, y + third + 1, 17, 29, 16, 24)
    x, y = _four_mixes(x + third, y + first + 2, 13, 15, 26, 6)
    return _mix(x + first, y + second + 3, 17)


@triton.jit(
    do_not_specialize=["elements", "first", "last", "key_low", "key_high"],
    do_not_specialize_on_alignment=["codes", "limits", "checksums"],
)
def pack(
    flat,
    elements,
    first,
    last,
    codes,
    limits,
    packets,
    checksums,
    residuals,
    key_low,
    key_high,
    STOCHASTIC: tl.constexpr,
    BITS: tl.constexpr,
    F: tl.constexpr,
    BIAS: tl.constexpr,
    L: tl.constexpr,
    STRIDE: tl.constexpr,
    OFFSET: tl.constexpr,
    ROWS: tl.constexpr,
    QUADS: tl.constexpr,
):
    rows = first + tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < last
    quads = tl.arange(0, QUADS)[None, :, None]
    place = tl.arange(0, 4)[None, None, :]
    in_block = quads * 4 < L
    index = rows.to(tl.int64)[:, None, None] * L + quads * 4 + place
    mask = inside[:, None, None] & in_block & (index < elements)
    end = first + (tl.program_id(0) + 1) * ROWS
    all_inside = (L == QUADS * 4) & (end <= last) & (end.to(tl.int64) * L <= elements)
    x = _load(flat, index, mask, all_inside)
    if limits is not None:
        limit = tl.load(limits + rows, mask=inside, other=0)
        x = tl.where((x.to(tl.int32, bitcast=True) & _MAGNITUDE) <= limit[:, None, None], x, 0.0)
    exponent = _signed_exponent(codes, rows, inside, F)[:, None, None]
    value = x.to(tl.float64) * _power_of_two(exponent)
    if STOCHASTIC:
        q = value.to(tl.int32)  # truncates
        counters = rows.to(tl.int64)[:, None] * (L // 4) + tl.arange(0, QUADS)[None, :]
        low, high = _draw(counters, key_low, key_high)
        both = tl.where(place < 2, low[:, :, None], high[:, :, None])
        draw = tl.where(place % 2 == 0, both & 0xFFFF, both >> 16).to(tl.int32)
        threshold = (2 * draw + 1).to(tl.float64) * 2.0**-17
        away = tl.where(value < 0, -1, 1)
        q += tl.where(tl.abs(value - q.to(tl.float64)) > threshold, away, 0)
    else:
        q = ((value + _TO_INTEGER) - _TO_INTEGER).to(tl.int32)
    lane = q + BIAS
    checksum = tl.sum(tl.sum(tl.where(in_block, lane, 0), axis=2), axis=1)
    tl.store(checksums + rows, checksum, mask=inside)
    # A word has PER_WORD lanes.
    PER_WORD: tl.constexpr = 32 // BITS
    WORDS: tl.constexpr = QUADS * 4 // PER_WORD
    lane = tl.reshape(_reversed(lane, BITS), [ROWS, WORDS, PER_WORD])
    word = tl.sum(lane << (BITS * tl.arange(0, PER_WORD))[None, None, :], axis=2)  # their bits are disjoint
    words = tl.arange(0, WORDS)[None, :]
    to = packets + rows.to(tl.int64)[:, None] * STRIDE + OFFSET + words
    tl.store(to, word, mask=inside[:, None] & (words * PER_WORD < L))
    if residuals is not None:
        left = x.to(tl.float64) - q.to(tl.float64) * _power_of_two(-exponent)
        tl.store(residuals + index, left.to(tl.float32), mask=mask)


@triton.jit(
    do_not_specialize=["elements", "first", "last", "workers"], do_not_specialize_on_alignment=["codes"]
)
def unpack(
    flat,
    elements,
    first,
    last,
    codes,
    packets,
    workers,
    AVERAGE: tl.constexpr,
    BITS: tl.constexpr,
    F: tl.constexpr,
    ZERO: tl.constexpr,
    L: tl.constexpr,
    STRIDE: tl.constexpr,
    OFFSET: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    rows = first + tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < last
    words = tl.arange(0, WORDS)[None, :]
    PER_WORD: tl.constexpr = 32 // BITS
    place = tl.arange(0, PER_WORD)[None, None, :]
    origin = packets + rows.to(tl.int64)[:, None] * STRIDE + OFFSET + words
    word = tl.load(origin, mask=inside[:, None] & (words * PER_WORD < L), other=0)
    lane = _reversed(word[:, :, None] >> (BITS * place), BITS)
    scale = _power_of_two(-_signed_exponent(codes, rows, inside, F))
    total = ((lane - ZERO).to(tl.float64) * scale[:, None, None]).to(tl.float32)
    if AVERAGE:
        # A quotient by at most 4096, rounded to float64, is no nearer to a tie than the exact one. (Triton 3.3 divides
        # float32 without subnormals.)
        total = (total.to(tl.float64) / workers).to(tl.float32)
    column = words[:, :, None] * PER_WORD + place
    index = rows.to(tl.int64)[:, None, None] * L + column
    end = first + (tl.program_id(0) + 1) * ROWS
    if (L == WORDS * PER_WORD) & (end <= last) & (end.to(tl.int64) * L <= elements):
        tl.store(flat + index, total)
    else:
        tl.store(flat + index, total, mask=inside[:, None, None] & (column < L) & (index < elements))
