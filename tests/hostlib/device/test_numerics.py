# SPDX-License-Identifier: Apache-2.0
"""The torch numerics give the same bits as the core's, on the CPU, and on a GPU if there is one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inagg import _core
from inagg.device.numerics import (
    NO_LIMIT,
    Lanes,
    Scan,
    blocks_of,
    quantise,
    residual,
    sums,
    write_lanes,
)
from tests.hostlib.device.cases import BIAS, GREATEST_CODE, HEADER, Case, bits, cases, converted

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")),
]


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
def test_device_and_core_agree_on_every_bit(device: str, case: Case) -> None:
    lanes, array, seed = case.lanes, case.array, case.seed
    core, count = converted(case), len(case.blocks)
    assert scanned(array, lanes, device, seed is not None).tolist() == core.codes

    elements = blocks_of(torch.from_numpy(array).to(device), 0, count, lanes.block_elements)
    limits = torch.from_numpy(core.limits).to(device).unsqueeze(1)
    limit = None if (limits == NO_LIMIT).all() else limits
    up = torch.from_numpy(lanes.up(core.agreed)).to(device).unsqueeze(1)
    down = torch.from_numpy(lanes.down(core.agreed)).to(device).unsqueeze(1)
    packets = torch.zeros(count, HEADER + 256 * lanes.words, dtype=torch.uint8, device=device)
    words = packets[:, HEADER:]
    quantised = quantise(elements, up, lanes, limit=limit, seed=seed)
    assert write_lanes(quantised, lanes, words).cpu().numpy().view(np.uint32).tolist() == core.checksums
    assert not packets[:, :HEADER].any()
    assert [row.cpu().numpy().tobytes() for row in words] == core.lanes
    left = residual(elements, quantised, down, limit=limit).cpu().numpy()
    assert (bits(left.reshape(-1)[: len(array)]) == bits(core.residual)).all()
    divisor = torch.tensor(float(lanes.workers), device=device) if case.average else None
    back = sums(words, down, lanes, divisor).cpu().numpy()
    assert (bits(back.reshape(-1)[: len(array)]) == bits(core.sums)).all()


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
