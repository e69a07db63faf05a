# SPDX-License-Identifier: Apache-2.0
"""Packets and numbers of docs/protocol.md (2 to 4) in plain Python: integers and fractions, no code shared with what it
checks. The switch's side is in reference_switch.py.

Everything follows the page's definitions rather than any clever formula; speed is no concern, except in
all_reduce_array, which says why it is exact.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

VERSION = 4
EXPONENT = 0x1
DATA = 0x2
QUERY = 0x4
RESULT = 0x8
SPECIAL = 0x01
NOT_READY = 0x02
WIDE = 0x04
CONGESTED = 0x10
AGAIN = 0x20
EXPONENT_BIAS = 256
EXPONENT_CHECK = 341
WORD_BYTES = 256
HEADER = struct.Struct(">BBHHHIII")


class Header(NamedTuple):
    """The header of section 2.1: its fields in order on the wire."""

    version: int
    kind: int
    rank: int
    job: int
    flags: int
    exponent: int
    flags_check: int
    exponent_check: int
    epoch: int
    chunk: int
    checksum: int

    def encode(self) -> bytes:
        return HEADER.pack(
            self.version << 4 | self.kind,
            self.rank,
            self.job,
            self.flags << 10 | self.exponent,
            self.flags_check << 10 | self.exponent_check,
            *self[8:],
        )

    def announcing(self, flags: int, exponent: int) -> "Header":
        """A copy with these flags and this exponent, and their check fields (section 3.2)."""
        return self._replace(
            flags=flags, exponent=exponent, flags_check=flags, exponent_check=exponent + EXPONENT_CHECK
        )

    @property
    def agrees(self) -> bool:
        return self.flags_check == self.flags and self.exponent_check == self.exponent + EXPONENT_CHECK


def contribution(
    *,
    kind: int,
    rank: int,
    job: int,
    epoch: int,
    chunk: int,
    flags: int = 0,
    exponent: int = 0,
    checksum: int = 0,
) -> Header:
    """A header with correct check fields."""
    bare = Header(VERSION, kind, rank, job, 0, 0, 0, 0, epoch, chunk, checksum)
    return bare.announcing(flags, exponent)


def decode(datagram: bytes) -> Header:
    first, rank, job, stated, check, epoch, chunk, checksum = HEADER.unpack_from(datagram)
    version, kind = divmod(first, 16)
    flags, exponent = divmod(stated, 1024)
    flags_check, exponent_check = divmod(check, 1024)
    return Header(
        version, kind, rank, job, flags, exponent, flags_check, exponent_check, epoch, chunk, checksum
    )


# ---- section 3: numbers


def two_to(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


@dataclass(frozen=True)
class Lanes:
    """Section 3.1."""

    bits: int  # W
    workers: int  # N

    @property
    def guard_bits(self) -> int:  # g
        return math.ceil(math.log2(self.workers))

    @property
    def fraction_bits(self) -> int:  # F
        return self.bits - 1 - self.guard_bits

    @property
    def possible(self) -> bool:
        return self.fraction_bits >= (1 if self.bits == 8 else 4)

    @property
    def bias(self) -> int:  # B
        return 1 << self.fraction_bits

    @property
    def class_format(self) -> "Lanes":  # of the class lanes of section 3.3
        return self if 2 * (self.guard_bits + 1) <= self.bits else Lanes(2 * self.bits, self.workers)

    @property
    def class_chunks(self) -> int:  # C
        return self.class_format.bits // self.bits

    def block_elements(self, words: int) -> int:  # L
        return words * 8 * WORD_BYTES // self.bits

    def pack(self, lanes: Sequence[int]) -> bytes:
        return b"".join(lane.to_bytes(self.bits // 8, "big") for lane in lanes)

    def unpack(self, words: bytes) -> list[int]:
        size = self.bits // 8
        return [int.from_bytes(words[i : i + size], "big") for i in range(0, len(words), size)]


def checksum(lanes: Sequence[int]) -> int:
    """Section 4."""
    return sum(lanes) % 2**32


def mark(x: int) -> int:
    """Section 4: the finaliser of MurmurHash3."""
    x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
    x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
    return x ^ x >> 16


def marks(chunk: int, rank: int) -> int:
    """Section 4: the term of a contribution's checksum that depends on its chunk and rank."""
    return (mark(chunk) + mark(2**32 - 1 - rank)) % 2**32


def fingerprint(elements: int, lane_bits: int, average: bool, context: int = 0) -> int:
    """Section 3.2."""
    return (8 * elements + 2 * {32: 0, 16: 1, 8: 2}[lane_bits] + average + context) % 2**32


def finite(block: Sequence[float]) -> list[float]:
    """The block with zeros in place of NaNs and infinities (section 3.3)."""
    return [x if math.isfinite(x) else 0.0 for x in block]


def is_special(block: Sequence[float]) -> bool:
    return not all(math.isfinite(x) for x in block)


def binade(x: float) -> int:
    """Section 3.3: floor(log2 |x|)."""
    return math.frexp(x)[1] - 1


def is_outlier(block: Sequence[float]) -> list[bool]:
    """Section 3.3, by its definition."""
    binades = sorted(binade(x) for x in finite(block) if abs(x) >= 2.0**-126)
    if not binades:
        return [False] * len(block)
    usual = binades[-(-len(binades) // 2) - 1]
    return [math.isfinite(x) and x != 0 and binade(x) > usual + 20 for x in block]


def is_wide(block: Sequence[float]) -> bool:
    return any(is_outlier(block))


def together(block: Sequence[float]) -> list[float]:
    """What travels in the block's lanes: the block with zeros in place of NaNs, infinities and outliers."""
    return [0.0 if out else x for x, out in zip(finite(block), is_outlier(block), strict=True)]


def outliers(block: Sequence[float]) -> list[float]:
    """The block with zeros in place of all but outliers."""
    return [x if out else 0.0 for x, out in zip(block, is_outlier(block), strict=True)]


def block_flags(block: Sequence[float]) -> int:
    """What a worker announces beside the block's exponent (section 3.3)."""
    return (SPECIAL if is_special(block) else 0) | (WIDE if is_wide(block) else 0)


def exponent_code(block: Sequence[float], lanes: Lanes) -> int:
    """The code on the wire, by the definition of section 3.2: the smallest e that keeps |q| <= B - 1."""
    greatest = max((abs(x) for x in finite(block)), default=0.0)
    if greatest == 0:
        return 0
    e = math.frexp(greatest)[1] + 2
    while round(Fraction(greatest) * two_to(lanes.fraction_bits - (e - 1))) <= lanes.bias - 1:
        e -= 1
    return e + EXPONENT_BIAS


def block_exponent(block: Sequence[float], lanes: Lanes) -> int:
    return exponent_code(together(block), lanes)


def quantise(block: Sequence[float], code: int, lanes: Lanes, words: int) -> list[int]:
    """The lanes of elements that travel together, padded. round() of a Fraction goes to nearest, ties to even."""
    scale = two_to(lanes.fraction_bits - (code - EXPONENT_BIAS)) if code else Fraction(0)
    out = [round(Fraction(x) * scale) + lanes.bias for x in block]
    return out + [lanes.bias] * (lanes.block_elements(words) - len(out))


def to_float32(x: Fraction) -> float:
    """The float32 nearest to a value, ties to even; subnormals and overflow as in IEEE 754."""
    if x == 0:
        return 0.0
    exponent = -149
    while abs(x) >= two_to(exponent + 24):
        exponent += 1
    rounded = round(x / two_to(exponent)) * two_to(exponent)
    if abs(rounded) >= two_to(128):
        return math.copysign(math.inf, x)
    return float(rounded)


def dequantise(sums: Sequence[int], code: int, lanes: Lanes, average: bool = False) -> list[float]:
    scale = two_to((code - EXPONENT_BIAS) - lanes.fraction_bits) if code else Fraction(0)
    out = [to_float32((s - lanes.workers * lanes.bias) * scale) for s in sums]
    if average:
        out = [to_float32(Fraction(x) / lanes.workers) if math.isfinite(x) else x for x in out]
    return out


def class_lanes(block: Sequence[float], lanes: Lanes, words: int) -> list[int]:
    """Section 3.3: of the whole block, to be packed by lanes.class_format; its words are the class chunks in order."""
    minus: int = 2 ** (lanes.guard_bits + 1)

    def lane(x: float) -> int:
        if math.isnan(x):
            return 1 + minus
        return {math.inf: 1, -math.inf: minus}.get(x, 0)

    return [lane(x) for x in block] + [0] * (lanes.block_elements(words) - len(block))


def apply_classes(sums: Sequence[float], class_sums: Sequence[int], lanes: Lanes) -> list[float]:
    counters = 2 ** (lanes.guard_bits + 1)

    def element(x: float, lane: int) -> float:
        minus, plus = divmod(lane, counters)
        if plus and minus:
            return math.nan
        if plus or minus:
            return math.inf if plus else -math.inf
        return x

    return [element(x, lane) for x, lane in zip(sums, class_sums, strict=False)]


def add_outliers(
    result: Sequence[float],
    sums: Sequence[int],
    code: int,
    outlier_sums: Sequence[int],
    outlier_code: int,
    lanes: Lanes,
    average: bool,
) -> list[float]:
    """Section 3.3, for a block's result without outliers. float() of a Fraction rounds to float64, to nearest."""

    def value(lane: int, code: int) -> float:
        scale = two_to((code - EXPONENT_BIAS) - lanes.fraction_bits) if code else Fraction(0)
        return float((lane - lanes.workers * lanes.bias) * scale)

    out = list(result)
    for i, lane in enumerate(outlier_sums[: len(out)]):
        if lane != lanes.workers * lanes.bias:
            total = value(sums[i], code) + value(lane, outlier_code)
            out[i] = to_float32(Fraction(total / lanes.workers if average else total))
    return out


def all_reduce_block(
    inputs: Sequence[Sequence[float]], lane_bits: int, words: int, average: bool
) -> list[float]:
    lanes = Lanes(lane_bits, len(inputs))
    code = max(block_exponent(block, lanes) for block in inputs)
    sums = add_lanes(lanes, [quantise(together(block), code, lanes, words) for block in inputs])
    out = dequantise(sums[: len(inputs[0])], code, lanes, average)
    if any(is_wide(block) for block in inputs):
        apart = [outliers(block) for block in inputs]
        apart_code = max(exponent_code(block, lanes) for block in apart)
        apart_sums = add_lanes(lanes, [quantise(block, apart_code, lanes, words) for block in apart])
        out = add_outliers(out, sums, code, apart_sums, apart_code, lanes, average)
    if any(is_special(block) for block in inputs):
        classes = [class_lanes(block, lanes, words) for block in inputs]
        out = apply_classes(out, [sum(column) for column in zip(*classes, strict=True)], lanes)
    return out


def add_lanes(lanes: Lanes, packed: Sequence[Sequence[int]]) -> list[int]:
    sums = [sum(column) for column in zip(*packed, strict=True)]
    assert max(sums) < 2**lanes.bits
    return sums


def all_reduce(
    inputs: Sequence[Sequence[float]], *, lane_bits: int, words: int, average: bool = False
) -> list[float]:
    """The result that every rank must get, bit for bit, except that any NaN equals any other."""
    size = Lanes(lane_bits, len(inputs)).block_elements(words)
    out: list[float] = []
    for first in range(0, len(inputs[0]), size):
        out += all_reduce_block([x[first : first + size] for x in inputs], lane_bits, words, average)
    return out


def all_reduce_array(
    inputs: NDArray[np.float32], *, lane_bits: int, words: int, average: bool = False
) -> NDArray[np.float32]:
    """all_reduce of inputs[rank, element] for large arrays.

    It computes in float64. There every step is exact, except the roundings of the protocol: a product of a float32 and
    a power of two, and sums of at most 64 integers below 2^31. The exponent is frexp's, plus one where F bits round up.
    """
    workers, elements = inputs.shape
    lanes = Lanes(lane_bits, workers)
    size = lanes.block_elements(words)
    blocks = -(-elements // size)
    padded = np.zeros((workers, blocks * size))
    padded[:, :elements] = np.where(np.isfinite(inputs), inputs, 0)
    padded = padded.reshape(workers, blocks, size)
    apart = are_outliers(padded)
    with np.errstate(over="ignore", under="ignore"):
        together = sum_array(np.where(apart, 0, padded), lanes)
        outliers = sum_array(np.where(apart, padded, 0), lanes)
        out = together.astype(np.float32)
        if average:
            out /= np.float32(workers)
        both = (together + outliers) / (workers if average else 1)
        out = np.where(outliers == 0, out, both.astype(np.float32))
    out = out.reshape(-1)[:elements]
    plus = (np.isnan(inputs) | np.isposinf(inputs)).any(axis=0)
    minus = (np.isnan(inputs) | np.isneginf(inputs)).any(axis=0)
    out[plus] = np.inf
    out[minus] = -np.inf
    out[plus & minus] = np.nan
    return out


def sum_array(padded: NDArray[np.float64], lanes: Lanes) -> NDArray[np.float64]:
    """The sums [block, element] of [rank, block, element], before they are rounded to float32."""
    greatest = np.abs(padded).max(axis=(0, 2))
    fraction, k = np.frexp(greatest)
    k += np.rint(np.ldexp(fraction, lanes.fraction_bits)) >= lanes.bias
    q = np.rint(np.ldexp(padded, (lanes.fraction_bits - k)[None, :, None])).sum(axis=0)
    out: NDArray[np.float64] = np.ldexp(q, (k - lanes.fraction_bits)[:, None])
    return out


def are_outliers(padded: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which elements of finite blocks [rank, block, element] are outliers (section 3.3)."""
    normal = np.abs(padded) >= 2.0**-126
    binades = np.frexp(padded)[1] - 1
    in_order = np.sort(np.where(normal, binades, 1000), axis=2)
    place = np.maximum(-(-normal.sum(axis=2) // 2) - 1, 0)
    usual = np.take_along_axis(in_order, place[:, :, None], axis=2)
    return normal & (binades > usual + 20)


def error_bound(exact: Fraction, code: int, lanes: Lanes, outlier_code: int | None = None) -> Fraction:
    """The error bound of section 3.4. outlier_code: if the element is an outlier on some rank."""

    def quantisation(code: int) -> Fraction:
        step = two_to((code - EXPONENT_BIAS) - lanes.fraction_bits - 1) if code else Fraction(0)
        return lanes.workers * step

    q = quantisation(code)
    if outlier_code is None:
        return q + two_to(-24) * (abs(exact) + q) + two_to(-150)
    q += quantisation(outlier_code)
    return q + two_to(-24) * (1 + two_to(-28)) * (abs(exact) + q) + two_to(-150)
