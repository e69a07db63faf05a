# SPDX-License-Identifier: Apache-2.0
"""The torch numerics give the same bits as the core's, on the CPU, and on a GPU if there is one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inagg import _core
from inagg.device.numerics import (
    NO_LIMIT,
    SPECIAL,
    Lanes,
    Scan,
    blocks_of,
    quantise,
    residual,
    sums,
    write_lanes,
)

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
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")),
]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Lanes, a few blocks (the last one short), and how far each block's agreed exponent is above its own."""
    lanes = Lanes(
        draw(st.sampled_from([8, 16, 32])), draw(st.integers(1, 64)), draw(st.sampled_from([4, 32]))
    )
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
    return {"lanes": lanes, "array": array, "louder": louder, "seed": rounding}


def bits(array: NDArray[np.float32]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(array).view(np.uint32)


def core_blocks(array: NDArray[np.float32], lanes: Lanes) -> Sequence[NDArray[np.float32]]:
    size = lanes.block_elements
    return [array[first : first + size] for first in range(0, len(array), size)]


def scanned(array: NDArray[np.float32], lanes: Lanes, device: str, stochastic: bool) -> NDArray[np.uint16]:
    flat = torch.from_numpy(array).to(device)
    count = lanes.blocks(len(array))
    scan = Scan(lanes, count, flat.device, stochastic)
    half = count // 2
    scan.blocks(blocks_of(flat, half, count, lanes.block_elements), half)
    if half:
        scan.blocks(blocks_of(flat, 0, half, lanes.block_elements), 0)
    return scan.codes().cpu().numpy().view(np.uint16)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60)
@given(cases())
def test_device_and_core_agree_on_every_bit(device: str, given_case: dict[str, Any]) -> None:
    lanes, array, seed = given_case["lanes"], given_case["array"], given_case["seed"]
    how: Any = {"lane_bits": lanes.bits, "workers": lanes.workers}
    blocks = core_blocks(array, lanes)
    own = [_core.block_exponent(block, **how, stochastic=seed is not None) for block in blocks]

    codes = scanned(array, lanes, device, seed is not None)
    # The core replaces the codes of blocks with elements that travel apart.
    assert codes.tolist() == [
        _core.exponent_within(block, GREATEST_FINITE, **how, stochastic=seed is not None)
        | (SPECIAL if found.special or found.wide else 0)
        for block, found in zip(blocks, own, strict=True)
    ]

    agreed = [
        min(found.code + more, GREATEST_CODE) if found.code else 0
        for found, more in zip(own, given_case["louder"], strict=True)
    ]
    wire = np.array(agreed, np.uint16)
    flat = torch.from_numpy(array).to(device)
    elements = blocks_of(flat, 0, len(blocks), lanes.block_elements)
    limits = torch.tensor([[found.limit] for found in own], dtype=torch.int32, device=device)
    limit = None if (limits == NO_LIMIT).all() else limits
    up = torch.from_numpy(lanes.up(wire)).to(device).unsqueeze(1)
    down = torch.from_numpy(lanes.down(wire)).to(device).unsqueeze(1)
    packets = torch.zeros(len(blocks), HEADER + 256 * lanes.words, dtype=torch.uint8, device=device)
    words = packets[:, HEADER:]
    quantised = quantise(elements, up, lanes, limit=limit, seed=seed)
    checksums = write_lanes(quantised, lanes, words).cpu().numpy().view(np.uint32)
    left = residual(elements, quantised, down, limit=limit).cpu().numpy()
    # As if all ranks had these elements: the sums of lanes are multiples of these lanes, and fit into lanes.
    means = lanes.workers % 2 == 0
    divisor = torch.tensor(float(lanes.workers), device=device) if means else None
    back = sums(words, down, lanes, divisor).cpu().numpy()
    assert not packets[:, :HEADER].any()
    for index, block in enumerate(blocks):
        expected, checksum = _core.quantise(
            block,
            exponent=agreed[index],
            **how,
            words=lanes.words,
            seed=seed,
            first_element=index * lanes.block_elements,
        )
        assert words[index].cpu().numpy().tobytes() == expected
        assert int(checksums[index]) == checksum
        out = np.full(len(block), 7, np.float32)
        _core.residual(block, expected, exponent=agreed[index], **how, out=out)
        assert (bits(left[index, : len(block)]) == bits(out)).all()
        result, _ = _core.dequantise(
            expected, elements=len(block), exponent=agreed[index], **how, average=means
        )
        assert (bits(back[index, : len(block)]) == bits(result)).all()


@pytest.mark.parametrize("device", DEVICES)
@given(
    st.sampled_from([8, 16, 32]),
    st.integers(1, 64),
    st.integers(BIAS - 148, GREATEST_CODE),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_any_lanes_become_the_floats_of_the_core(
    device: str, lane_bits: _core.LaneBits, workers: int, code: int, seed: int, average: bool
) -> None:
    lanes = Lanes(lane_bits, workers, 4)
    # Any sums of lanes that N workers can make: each of N lanes is from 1 to 2B - 1.
    rng = np.random.default_rng(seed)
    sent = rng.integers(workers, workers * (2 * lanes.bias - 1), lanes.block_elements, endpoint=True)
    packed = sent.astype(f">u{lane_bits // 8}").tobytes()
    words = torch.frombuffer(bytearray(packed), dtype=torch.uint8).view(1, -1).to(device)
    down = torch.from_numpy(lanes.down(np.array([code], np.uint16))).view(1, 1).to(device)
    divisor = torch.tensor(float(workers), device=device) if average else None
    found = sums(words, down, lanes, divisor).cpu().numpy()[0]
    expected, _ = _core.dequantise(
        packed, elements=len(found), exponent=code, lane_bits=lane_bits, workers=workers, average=average
    )
    assert (bits(found) == bits(expected)).all()


def test_draws_go_on_where_counters_have_more_than_32_bits() -> None:
    lanes = Lanes(16, 2, 4)
    block = np.random.default_rng(1).standard_normal(lanes.block_elements).astype(np.float32)
    first = 4 * (2**32 - 10)
    code = _core.block_exponent(block, lane_bits=16, workers=2, stochastic=True).code
    expected, _ = _core.quantise(
        block, exponent=code, lane_bits=16, workers=2, words=4, seed=2**63 + 5, first_element=first
    )
    up = torch.from_numpy(lanes.up(np.array([code], np.uint16))).view(1, 1)
    q = quantise(torch.from_numpy(block).view(1, -1), up, lanes, seed=2**63 + 5, first_element=first)
    words = torch.empty(1, 1024, dtype=torch.uint8)
    write_lanes(q, lanes, words)
    assert words.numpy().tobytes() == expected
