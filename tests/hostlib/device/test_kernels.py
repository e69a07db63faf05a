# SPDX-License-Identifier: Apache-2.0
"""Triton's kernels give the same bits as the C++ core, on a GPU or in Triton's interpreter. They compile for GPUs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inagg import _core
from inagg.device import ways
from inagg.device.numerics import NO_LIMIT, Lanes, draw
from tests.hostlib.device.cases import BIAS, GREATEST_CODE, HEADER, Case, bits, cases, converted
from tests.hostlib.device.rank_sessions import INTERPRETED

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from inagg.device import by_triton, kernels  # noqa: E402
from inagg.device.by_triton import pack, scan, unpack  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU and not INTERPRETED else "cpu")

# The interpreter warns of sums that become infinities.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
runs_kernels = pytest.mark.skipif(
    not (GPU or INTERPRETED), reason="needs a CUDA GPU, or Triton's interpreter: test_interpreter"
)


def on_device(array: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(array).to(DEVICE)


def packets_for(blocks: int, lanes: Lanes) -> torch.Tensor:
    return torch.zeros(blocks, (HEADER + 256 * lanes.words) // 4, dtype=torch.int32, device=DEVICE)


@runs_kernels
@settings(max_examples=60)
@given(cases(words=(1, 3, 4, 32)), st.booleans())
def test_kernels_and_core_agree_on_every_bit(case: Case, in_two: bool) -> None:
    lanes, seed, core, count = case.lanes, case.seed, converted(case), len(case.blocks)
    flat, agreed = on_device(case.array), on_device(core.agreed.view(np.int16))
    codes = torch.full((count,), 77, dtype=torch.int16, device=DEVICE)
    scan(flat, lanes, codes, stochastic=seed is not None)
    assert codes.cpu().numpy().view(np.uint16).tolist() == core.codes

    packets, checksums = packets_for(count, lanes), torch.zeros(count, dtype=torch.int32, device=DEVICE)
    left, sums = (torch.full_like(flat, 7) for _ in range(2))
    limits = None if (core.limits == NO_LIMIT).all() else on_device(core.limits)
    middle = count // 2 if in_two else 0
    for first, last in ((middle, count), (0, middle)):
        if first == last:
            continue
        pack(
            flat,
            first,
            last,
            lanes,
            codes=agreed,
            packets=packets,
            offset=HEADER,
            checksums=checksums,
            limits=limits,
            residual=left,
            seed=seed,
        )
        unpack(
            sums,
            first,
            last,
            lanes,
            codes=agreed,
            packets=packets,
            offset=HEADER,
            average=case.average,
        )
    assert not packets[:, : HEADER // 4].any()
    assert [row[HEADER // 4 :].cpu().numpy().tobytes() for row in packets] == core.lanes
    assert checksums.cpu().numpy().view(np.uint32).tolist() == core.checksums
    assert (bits(left.cpu().numpy()) == bits(core.residual)).all()
    assert (bits(sums.cpu().numpy()) == bits(core.sums)).all()


@runs_kernels
def test_blocks_outside_the_portion_do_not_change() -> None:
    lanes = Lanes(16, 2, 4)
    flat = torch.ones(5 * lanes.block_elements, device=DEVICE)
    codes = torch.full((5,), BIAS + 1, dtype=torch.int16, device=DEVICE)
    packets, checksums = packets_for(5, lanes), torch.zeros(5, dtype=torch.int32, device=DEVICE)
    how: dict[str, Any] = {"codes": codes, "packets": packets, "offset": HEADER}
    pack(flat, 1, 4, lanes, **how, checksums=checksums)
    assert [bool(row.any()) for row in packets] == [False, True, True, True, False]
    assert [bool(found) for found in checksums] == [False, True, True, True, False]
    unpack(flat, 2, 4, lanes, **how)
    # The lane is one of two: it lacks the other rank's bias, which stands for -2.
    assert [float(row[0]) for row in flat.view(5, -1)] == [1.0, 1.0, -1.0, -1.0, 1.0]


@runs_kernels
@given(
    st.sampled_from([8, 16, 32]),
    st.integers(1, 64),
    st.integers(BIAS - 148, GREATEST_CODE),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
@settings(max_examples=60)
def test_any_lanes_become_the_floats_of_the_core(
    lane_bits: _core.LaneBits, workers: int, code: int, seed: int, average: bool
) -> None:
    lanes = Lanes(lane_bits, workers, 4)
    # Any sums of lanes that N workers can make: each of N lanes is from 1 to 2B - 1.
    rng = np.random.default_rng(seed)
    sent = rng.integers(workers, workers * (2 * lanes.bias - 1), lanes.block_elements, endpoint=True)
    packed = sent.astype(f">u{lane_bits // 8}").tobytes()
    packets = packets_for(1, lanes)
    packets[0, HEADER // 4 :] = on_device(np.frombuffer(packed, np.int32).copy())
    flat = torch.empty(lanes.block_elements, device=DEVICE)
    codes = torch.tensor([code], dtype=torch.int16, device=DEVICE)
    unpack(flat, 0, 1, lanes, codes=codes, packets=packets, offset=HEADER, average=average)
    expected, _ = _core.dequantise(
        packed, elements=len(flat), exponent=code, lane_bits=lane_bits, workers=workers, average=average
    )
    assert (bits(flat.cpu().numpy()) == bits(expected)).all()


@triton.jit  # type: ignore[untyped-decorator]
def draws(counters, key_low, key_high, found, COUNT: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    place = tl.arange(0, COUNT)
    low, high = kernels._draw(tl.load(counters + place), key_low, key_high)
    tl.store(found + place, low.to(tl.int64))
    tl.store(found + COUNT + place, high.to(tl.int64))


@runs_kernels
def test_draws_go_on_where_counters_have_more_than_32_bits() -> None:
    counters = [0, 1, 2**32 - 1, 2**32, 2**32 + 1, 2**40 + 5, 2**62, 2**61 + 2**31]
    key, count = 2**63 + 5, len(counters)
    found = torch.zeros(2 * count, dtype=torch.int64, device=DEVICE)
    draws[(1,)](torch.tensor(counters, device=DEVICE), 5, -(2**31), found, COUNT=count)
    low, high = found.cpu().view(2, count).tolist()
    for counter, first, second in zip(counters, low, high, strict=True):
        expected = draw(key, counter, 1, torch.device("cpu")).tolist()
        assert [first & 0xFFFF, first >> 16, second & 0xFFFF, second >> 16] == expected


@runs_kernels
def test_a_device_on_which_the_kernels_work_is_found_to_be_one() -> None:
    ways._problems.clear()
    assert ways.triton_problem(DEVICE) is None


@runs_kernels
def test_the_default_type_of_floats_does_not_matter() -> None:
    ways._problems.clear()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert ways.triton_problem(DEVICE) is None
    finally:
        torch.set_default_dtype(default)


@runs_kernels
@pytest.mark.parametrize("what", ["packets", "checksums", "residual"])
def test_a_device_on_which_they_give_other_bits_does_without(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(*args: Any, **settings: Any) -> None:
        pack(*args, **settings)
        if settings.get(what) is not None:
            settings[what].view(-1)[200 if what != "checksums" else 0] += 1

    monkeypatch.setattr(by_triton, "pack", wrong)
    ways._problems.clear()
    assert ways.triton_problem(DEVICE) == "its results differ from those of torch"
    assert "do without Triton: its results differ" in caplog.text
    ways._problems.clear()


class Recorder:
    """Takes the place of a kernel, and compiles it for a GPU with the arguments of a launch.

    Args:
        capability: of the GPU, such as 80 for 8.0.
    """

    def __init__(self, kernel: Any, capability: int) -> None:
        self._kernel, self._capability = kernel, capability
        self.ptx = ""

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        return self._compile

    def _compile(self, *arguments: Any, num_warps: int, enable_fp_fusion: bool, **constants: Any) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        signature = dict.fromkeys(constants, "constexpr")
        aligned = {}
        for place, (name, value) in enumerate(
            zip(self._kernel.arg_names[: len(arguments)], arguments, strict=True)
        ):
            if value is None:
                constants[name] = None
                signature[name] = "constexpr"
            elif isinstance(value, int):
                signature[name] = "i32"
            else:
                signature[name] = {torch.float32: "*fp32", torch.int16: "*i16", torch.int32: "*i32"}[
                    value.dtype
                ]
            if value is not None and name in ("flat", "packets", "residuals"):
                aligned[(place,)] = [["tt.divisibility", 16]]
        source = ASTSource(
            fn=self._kernel,
            signature={name: signature[name] for name in self._kernel.arg_names},
            constexprs=constants,
            attrs=aligned,
        )
        made = triton.compile(
            source,
            target=GPUTarget("cuda", self._capability, 32),
            options={"num_warps": num_warps, "enable_fp_fusion": enable_fp_fusion},
        )
        assert made.asm["cubin"]
        self.ptx = made.asm["ptx"]


@pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")
@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize("lane_bits", [8, 16, 32])
def test_kernels_compile_to_exact_arithmetic_and_wide_accesses(
    lane_bits: _core.LaneBits, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    recorders = {name: Recorder(getattr(kernels, name), capability) for name in ("scan", "pack", "unpack")}
    for name, recorder in recorders.items():
        monkeypatch.setattr(kernels, name, recorder)
    lanes = Lanes(lane_bits, 3, 4)
    flat = torch.zeros(16 * lanes.block_elements - 77)
    codes, checksums = torch.zeros(16, dtype=torch.int16), torch.zeros(16, dtype=torch.int32)
    how: dict[str, Any] = {"codes": codes, "packets": packets_for(16, lanes), "offset": HEADER}
    scan(flat, lanes, codes, stochastic=False)
    pack(flat, 0, 16, lanes, **how, checksums=checksums)
    unpack(flat, 0, 16, lanes, **how, average=True)
    found = {name: recorder.ptx for name, recorder in recorders.items()}
    pack(flat, 0, 16, lanes, **how, checksums=checksums, limits=checksums, residual=flat, seed=1)
    found["pack, all"] = recorders["pack"].ptx
    for name, ptx in found.items():
        # Subnormals are numbers, and a division is not a product with a reciprocal.
        assert not [
            line for line in ptx.splitlines() if ".ftz" in line or "div.full" in line or "fma" in line
        ], name
    # Four elements an access, and 32 bits of packets.
    assert "ld.global.v4.b32" in found["scan"]
    assert "ld.global.v4.b32" in found["pack"]
    assert "st.global.v4.b32" in found["unpack"] or "st.global.v2.b32" in found["unpack"]
    for name in ("pack", "unpack"):
        assert "global.b8" not in found[name]
        assert "global.u8" not in found[name]
