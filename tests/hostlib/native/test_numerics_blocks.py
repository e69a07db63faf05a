# SPDX-License-Identifier: Apache-2.0
"""Quantising, lanes, exponents and classes (protocol 3), by hand-made cases and against exact arithmetic."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inagg import _core
from inagg_simulator import reference

BIAS = reference.EXPONENT_BIAS
FINITE = _core.CONSTANTS["GREATEST_FINITE"]

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = 2.0**-149

finite_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
any_floats = st.floats(width=32)
# Similar magnitudes, so that rounding matters for all elements.
close_floats = st.builds(
    lambda f, e: float(np.float32(f) * np.float32(2.0) ** e), st.floats(-2, 2, width=32), st.integers(-3, 3)
)
blocks = st.one_of(
    st.lists(finite_floats, min_size=1, max_size=64),
    st.lists(close_floats, min_size=1, max_size=64),
    st.lists(any_floats, min_size=1, max_size=64),
)
lane_widths = st.sampled_from([8, 16, 32])
worker_counts = st.one_of(st.integers(1, 64), st.sampled_from([65, 128, 129, 2048, 4096]))

pytestmark = pytest.mark.usefixtures("kernels")


def f32(values: Any) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def announced(block: NDArray[np.float32], lane_bits: _core.LaneBits, workers: int) -> tuple[int, bool, bool]:
    found = _core.block_exponent(block, lane_bits=lane_bits, workers=workers)
    return found.code, found.special, found.wide


def bits(values: Any) -> list[int]:
    """Bit patterns, with one for every NaN and one for both zeros."""
    array = f32(values) + np.float32(0)
    array[np.isnan(array)] = np.nan
    return [int(x) for x in array.view(np.uint32)]


@pytest.mark.parametrize(
    ("workers", "guard_bits"),
    [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (33, 6), (64, 6), (65, 7), (4096, 12)],
)
def test_guard_bits_hold_the_sum_of_all_workers(workers: int, guard_bits: int) -> None:
    assert _core.guard_bits(workers) == guard_bits


def test_a_block_is_what_fits_the_words() -> None:
    assert _core.block_elements(4, 32) == 256
    assert _core.block_elements(4, 16) == 512
    assert _core.block_elements(4, 8) == 1024
    assert _core.block_elements(32, 16) == 4096


@pytest.mark.parametrize(
    ("greatest", "exponent"),
    [
        pytest.param(1.0, 1, id="one is half of 2^1"),
        pytest.param(0.5, 0, id="one half"),
        pytest.param(-0.75, 0, id="sign does not matter"),
        pytest.param(LARGEST, 128, id="greatest float, whose 24 bits fit 29"),
        pytest.param(2.0**-126, -125, id="least normal"),
        pytest.param(2.0**-127, -126, id="greatest subnormal power of two"),
        pytest.param(SMALLEST, -148, id="least subnormal"),
    ],
)
def test_the_exponent_is_that_of_the_greatest_magnitude(greatest: float, exponent: int) -> None:
    block = f32([0.0, greatest, greatest / 4])
    assert announced(block, 32, 4) == (exponent + BIAS, False, False)


@pytest.mark.parametrize(
    ("greatest", "exponent"),
    [
        pytest.param(1 - 2**-13, 0, id="the greatest of 13 bits stays"),
        pytest.param(1 - 2**-13 + 2**-15, 0, id="below half way rounds down to it"),
        pytest.param(1 - 2**-14, 1, id="half way to 2^F is a tie, and goes up"),
        pytest.param(1 - 2**-24, 1, id="above half way goes up"),
        pytest.param(LARGEST, 129, id="the greatest float goes up"),
    ],
)
def test_the_exponent_grows_where_rounding_would_reach_two_to_the_f(greatest: float, exponent: int) -> None:
    # W = 16, N = 4: g = 2, F = 13.
    assert announced(f32([greatest]), 16, 4) == (exponent + BIAS, False, False)


@pytest.mark.parametrize("zeros", [[], [0.0], [-0.0, 0.0]])
def test_a_block_of_zeros_has_exponent_zero_and_lanes_of_b(zeros: list[float]) -> None:
    assert announced(f32(zeros), 32, 2) == (0, False, False)
    words, checksum = _core.quantise(f32(zeros), exponent=0, lane_bits=32, workers=2, words=1)
    assert words == (2**30).to_bytes(4, "big") * 64
    assert checksum == 64 * 2**30 % 2**32


def test_specials_count_for_nothing_but_the_flag() -> None:
    block = f32([math.nan, 3.0, -math.inf])
    assert announced(block, 32, 2) == (2 + BIAS, True, False)
    assert announced(f32([math.inf]), 32, 2) == (0, True, False)
    words, _ = _core.quantise(block, exponent=2 + BIAS, lane_bits=32, workers=2, words=1)
    # F = 30: three quarters of 2^30 above the bias of 2^30.
    assert words[:12].hex(" ", 4) == "40000000 70000000 40000000"


def test_rounding_goes_to_nearest_even() -> None:
    # W = 16, N = 1: F = 15; under exponent 15 a lane counts ones, above a bias of 0x8000.
    block = f32([0.5, 1.5, 2.5, -0.5, -1.5, 2.500001, 16384.0])
    words, _ = _core.quantise(block, exponent=15 + BIAS, lane_bits=16, workers=1, words=1)
    assert words[:14].hex(" ", 2) == "8000 8002 8002 8000 7ffe 8003 c000"


def test_lane_zero_comes_first_and_padding_is_b() -> None:
    # W = 32, N = 2: F = 30, B = 0x40000000; under exponent 1 one is 2^29.
    words, checksum = _core.quantise(f32([1.0, -1.0]), exponent=1 + BIAS, lane_bits=32, workers=2, words=1)
    assert words[:16].hex(" ", 4) == "60000000 20000000 40000000 40000000"
    assert len(words) == 256
    assert checksum == 64 * 0x40000000 % 2**32


@given(blocks, lane_widths, worker_counts)
def test_the_exponent_is_the_smallest_that_keeps_every_lane(
    block: list[float], lane_bits: _core.LaneBits, workers: int
) -> None:
    lanes = reference.Lanes(lane_bits, workers)
    assume(lanes.possible)
    assert announced(f32(block), lane_bits, workers) == (
        reference.block_exponent(block, lanes),
        reference.is_special(block),
        reference.is_wide(block),
    )


@given(blocks, lane_widths, worker_counts, st.one_of(st.integers(0, 20), st.integers(0, 280)))
@example([LARGEST, -LARGEST / 4, 1.0], 8, 64, 0)  # the least scale there is: 2^-128
@example([SMALLEST], 32, 1, 0)  # and the greatest: 2^179
def test_lanes_are_the_nearest_integers(
    block: list[float], lane_bits: _core.LaneBits, workers: int, above: int
) -> None:
    lanes = reference.Lanes(lane_bits, workers)
    assume(lanes.possible)
    own = reference.block_exponent(block, lanes)
    # The exponent of another rank may be greater.
    code = min(own + above, 129 + BIAS) if own else 0
    words, checksum = _core.quantise(f32(block), exponent=code, lane_bits=lane_bits, workers=workers, words=1)
    expected = reference.quantise(reference.together(block), code, lanes, 1)
    assert words == lanes.pack(expected)
    assert checksum == reference.checksum(expected)


@given(
    st.integers(-148, 129),
    lane_widths,
    worker_counts,
    st.booleans(),
    st.lists(st.floats(-1, 1), min_size=1, max_size=64),
)
@example(129, 8, 64, False, [1.0, 0.0, -1.0])  # the scale is 2^128, beyond a float
@example(129, 8, 64, True, [1.0, 0.0, -1.0])
@example(-148, 32, 64, True, [1.0, 0.001, -1.0])
def test_sums_are_rounded_once(
    e: int, lane_bits: _core.LaneBits, workers: int, average: bool, parts: list[float]
) -> None:
    lanes = reference.Lanes(lane_bits, workers)
    assume(lanes.possible)
    sums = [workers * (lanes.bias + round(part * (lanes.bias - 1))) for part in parts]
    padded = sums + [workers * lanes.bias] * (lanes.block_elements(1) - len(sums))
    block, checksum = _core.dequantise(
        lanes.pack(padded),
        elements=len(sums),
        exponent=e + BIAS,
        lane_bits=lane_bits,
        workers=workers,
        average=average,
    )
    assert bits(block) == bits(reference.dequantise(sums, e + BIAS, lanes, average))
    assert checksum == reference.checksum(padded)


@pytest.mark.parametrize(
    ("lane", "result"),
    [
        pytest.param(1, 0.0, id="a quarter of the least subnormal goes down"),
        pytest.param(3, 2.0**-149, id="three quarters"),
        pytest.param(5, 2.0**-149, id="one and a quarter"),
        pytest.param(6, 2.0**-148, id="one and a half is a tie, and goes to the even two"),
        pytest.param(2, 0.0, id="half is a tie, and goes to the even zero"),
    ],
)
def test_subnormal_sums_are_not_rounded_twice(lane: int, result: float) -> None:
    # W = 32, N = 1: F = 31. Under exponent -120 a lane counts 2^-151, a quarter of the least subnormal.
    lanes = reference.Lanes(32, 1)
    words = lanes.pack([lanes.bias + lane] + [lanes.bias] * 63)
    block, _ = _core.dequantise(words, elements=1, exponent=-120 + BIAS, lane_bits=32, workers=1)
    assert block[0] == result


def test_a_sum_beyond_the_greatest_float_is_an_infinity() -> None:
    lanes = reference.Lanes(32, 2)
    code = _core.block_exponent(f32([LARGEST]), lane_bits=32, workers=2).code
    q = reference.quantise([LARGEST, -LARGEST], code, lanes, 1)
    words = lanes.pack([2 * lane for lane in q])
    block, _ = _core.dequantise(words, elements=2, exponent=code, lane_bits=32, workers=2)
    assert block.tolist() == [math.inf, -math.inf]


CLASSES = {"0": 0.0, "+": math.inf, "-": -math.inf, "n": math.nan}


@pytest.mark.parametrize(
    ("ranks", "result"),
    [
        pytest.param("00", 7.0, id="finite everywhere keeps its sum"),
        pytest.param("+0", math.inf, id="an infinity wins over finite"),
        pytest.param("0-", -math.inf, id="so does a negative one"),
        pytest.param("++", math.inf, id="two of one sign"),
        pytest.param("+-", math.nan, id="of both signs there is no sum"),
        pytest.param("n0", math.nan, id="a NaN wins over finite"),
        pytest.param("n-", math.nan, id="and over an infinity"),
    ],
)
@pytest.mark.parametrize("lane_bits", [8, 16, 32])
def test_specials_sum_as_floats_do(ranks: str, result: float, lane_bits: _core.LaneBits) -> None:
    workers = len(ranks)
    lanes = reference.Lanes(lane_bits, workers)
    packed = [
        _core.class_lanes(f32([1.0, CLASSES[rank]]), lane_bits=lane_bits, workers=workers, words=1)
        for rank in ranks
    ]
    sums = [sum(column) for column in zip(*(lanes.unpack(words) for words, _ in packed), strict=True)]
    block = f32([3.0, 7.0])
    checksum = _core.apply_classes(block, lanes.pack(sums), lane_bits=lane_bits, workers=workers)
    assert bits(block) == bits([3.0, result])
    assert checksum == sum(own for _, own in packed)


@given(
    st.lists(st.tuples(any_floats, any_floats, any_floats), min_size=1, max_size=64),
    lane_widths,
    worker_counts,
)
def test_classes_are_those_of_the_reference(
    columns: list[tuple[float, ...]], lane_bits: _core.LaneBits, workers: int
) -> None:
    lanes = reference.Lanes(lane_bits, workers)
    assume(lanes.possible)
    for row in zip(*columns, strict=True):
        words, checksum = _core.class_lanes(
            f32(row), lane_bits=lane_bits, workers=workers, words=lanes.class_chunks
        )
        expected = reference.class_lanes(row, lanes, 1)
        assert words == lanes.class_format.pack(expected)
        assert checksum == reference.checksum(expected)


@pytest.mark.parametrize(
    ("lane_bits", "workers"),
    [(8, 8), (8, 64), (16, 64), (16, 128), (16, 129), (16, 2048), (32, 64), (32, 4096)],
)
def test_counters_of_all_workers_fit_a_class_lane(lane_bits: _core.LaneBits, workers: int) -> None:
    lanes = reference.Lanes(lane_bits, workers).class_format
    words, own = _core.class_lanes(f32([math.nan]), lane_bits=lane_bits, workers=workers, words=1)
    total = workers * lanes.unpack(words)[0]
    assert total < 2**lanes.bits
    block = f32([1.0])
    sums = lanes.pack([total] + [0] * (lanes.block_elements(1) - 1))
    assert _core.apply_classes(block, sums, lane_bits=lane_bits, workers=workers) == workers * own
    assert math.isnan(block[0])


def test_classes_of_nine_workers_take_two_chunks_of_8_bit_lanes() -> None:
    # W = 8, N = 9: g = 4; two counters of 5 bits need a lane of 16. A block of one word has 256 elements.
    block = np.ones(256, dtype=np.float32)
    block[[0, 127, 128, 255]] = [math.inf, math.nan, -math.inf, math.inf]
    first, second = (
        _core.class_lanes(part, lane_bits=8, workers=9, words=1) for part in (block[:128], block[128:])
    )
    assert first == (b"\x00\x01" + bytes(252) + b"\x00\x21", 0x22)
    assert second == (b"\x00\x20" + bytes(252) + b"\x00\x01", 0x21)
    with pytest.raises(ValueError, match="more elements"):
        _core.class_lanes(block, lane_bits=8, workers=9, words=1)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 128, 255, 256, 257, 300, 448, 1000, 1024])
@pytest.mark.parametrize("lane_bits", [8, 16, 32])
@pytest.mark.parametrize("special", [False, True], ids=["finite", "special"])
def test_long_blocks_are_packed_and_padded_as_short_ones(
    size: int, lane_bits: _core.LaneBits, special: bool
) -> None:
    # Inner loops go in steps and pieces; a block of one element knows neither.
    block = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    if special:
        block[::7] = math.nan
    code = 3 + BIAS
    quantise = partial(_core.quantise, exponent=code, lane_bits=lane_bits, workers=3)
    dequantise = partial(_core.dequantise, exponent=code, lane_bits=lane_bits, workers=3)
    words, checksum = quantise(block, words=lane_bits // 2)
    one_by_one = [quantise(block[i : i + 1], words=1)[0] for i in range(size)]
    padding, _ = quantise(f32([]), words=1)
    lane_bytes = lane_bits // 8
    assert words == b"".join(word[:lane_bytes] for word in one_by_one) + padding[:lane_bytes] * (1024 - size)
    assert checksum == reference.checksum(reference.Lanes(lane_bits, 3).unpack(words))
    sums, again = dequantise(words, elements=size)
    alone = [dequantise(word, elements=1)[0][0] for word in one_by_one]
    assert bits(sums) == bits(alone)
    assert again == checksum


@settings(max_examples=60)
@given(st.integers(1, 8), lane_widths, st.data())
def test_the_error_is_within_the_stated_bound(
    workers: int, lane_bits: _core.LaneBits, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, 8))
    floats = st.one_of(finite_floats, close_floats)
    inputs = [data.draw(st.lists(floats, min_size=size, max_size=size)) for _ in range(workers)]
    check_error(inputs, reference.Lanes(lane_bits, workers))


@pytest.mark.parametrize(("lane_bits", "workers"), [(16, 65), (16, 2048), (32, 65), (32, 4096)])
def test_the_error_of_a_large_job_is_within_the_stated_bound(lane_bits: int, workers: int) -> None:
    draws = np.random.default_rng(workers)
    scale = np.float32(2.0) ** draws.integers(-20, 20, (workers, 8))
    inputs = draws.standard_normal((workers, 8)).astype(np.float32) * scale
    inputs[:, 0] = np.abs(inputs[:, 0])
    check_error(inputs.tolist(), reference.Lanes(lane_bits, workers))


def check_error(inputs: Sequence[Sequence[float]], lanes: reference.Lanes) -> None:
    """inputs: by worker, one block each."""
    how: dict[str, Any] = {"lane_bits": lanes.bits, "workers": lanes.workers}
    code = max(reference.block_exponent(block, lanes) for block in inputs)
    packed = [_core.quantise(f32(block), exponent=code, words=1, **how)[0] for block in inputs]
    sums = added(packed, lanes)
    result, _ = _core.dequantise(sums, elements=len(inputs[0]), exponent=code, **how)
    apart = [reference.outliers(block) for block in inputs]
    apart_code = max(reference.exponent_code(block, lanes) for block in apart)
    packed = [
        _core.quantise(f32(block), limit=FINITE, exponent=apart_code, words=1, **how)[0] for block in apart
    ]
    _core.add_outliers(
        result,
        sums,
        exponent=code,
        outlier_words=added(packed, lanes),
        outlier_exponent=apart_code,
        **how,
    )
    for got, column, far in zip(
        result.tolist(), zip(*inputs, strict=True), zip(*apart, strict=True), strict=True
    ):
        exact = sum(map(Fraction, column), Fraction(0))
        bound = reference.error_bound(exact, code, lanes, apart_code if any(far) else None)
        if math.isinf(got):
            assert abs(exact) + bound >= reference.two_to(128) - reference.two_to(103)
        else:
            assert abs(Fraction(got) - exact) <= bound


def added(packed: Sequence[bytes], lanes: reference.Lanes) -> bytes:
    return lanes.pack([sum(column) for column in zip(*map(lanes.unpack, packed), strict=True)])


@pytest.mark.parametrize("lane_bits", [8, 16, 32])
@pytest.mark.parametrize("size", [1, 3, 63, 64])
def test_the_fast_reference_is_the_slow_one(lane_bits: _core.LaneBits, size: int) -> None:
    draws = np.random.default_rng(size)
    inputs = draws.standard_normal((3, size)).astype(np.float32) * np.float32(2.0) ** draws.integers(
        -140, 126, (3, size)
    )
    inputs[draws.random((3, size)) < 0.1] = np.nan
    inputs[draws.random((3, size)) < 0.1] = np.inf
    inputs[draws.random((3, size)) < 0.1] = -np.inf
    fast = reference.all_reduce_array(inputs, lane_bits=lane_bits, words=1)
    slow = reference.all_reduce(inputs.tolist(), lane_bits=lane_bits, words=1)
    assert bits(fast) == bits(slow)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lane_bits": 4, "workers": 2}, "lane_bits is 4"),
        ({"lane_bits": 24, "workers": 2}, "lane_bits is 24"),
        ({"lane_bits": 32, "workers": 0}, "workers is 0"),
        ({"lane_bits": 32, "workers": 4097}, "workers is 4097"),
        ({"lane_bits": 8, "workers": 65}, "lanes of 8 bits are too narrow for 65 workers"),
        ({"lane_bits": 16, "workers": 2049}, "lanes of 16 bits are too narrow for 2049 workers"),
    ],
)
def test_impossible_lanes_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.block_exponent(f32([1.0]), **arguments)


def test_arrays_of_another_type_are_refused_rather_than_copied() -> None:
    with pytest.raises(TypeError):
        _core.block_exponent(np.ones(3), lane_bits=32, workers=2)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _core.block_exponent(f32([1, 2, 3, 4])[::2], lane_bits=32, workers=2)
