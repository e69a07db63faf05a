# SPDX-License-Identifier: Apache-2.0
"""Sums of CPU tensors in place of CUDA tensors, in every way; only streams are missing.

Results are compared, bit for bit, with those of ranks whose tensors the core has.
"""

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

from inagg.device import by_torch as _by_torch
from inagg.device import sums as _sums
from inagg.device import ways as _ways
from inagg.device.ways import Way
from inagg.errors import ConfigurationError, InaggError, JobError
from tests.hostlib.device.rank_sessions import (
    INTERPRETED,
    PLAIN,
    STAGED,
    WAYS,
    bits,
    inputs,
    one_launch_at_a_time,
    sessions,
    sums,
    wait_all,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("small_portions")

# The interpreter takes some ms for 1000 elements.
SIZES = (0, 255, 5000) if INTERPRETED else (0, 1, 255, 256, 5000, 30_001)
PLACES = [[False, True, False]] if INTERPRETED else [[True] * 3, [False, True, False]]  # by rank


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a portion to 2048 elements, so that tensors of a few thousand elements take several portions."""
    monkeypatch.setattr(_sums, "PORTION", 2048)
    monkeypatch.setattr(_by_torch.TorchPortions, "most", 2048)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    with one_launch_at_a_time() if INTERPRETED else contextlib.nullcontext():
        yield request.param


@pytest.mark.parametrize("average", [False, True], ids=["sum", "mean"])
@pytest.mark.parametrize("words", [4, 32])
@pytest.mark.parametrize("lane_bits", [8, 16, 32])
def test_results_are_those_of_the_core_whichever_ranks_are_staged(
    way: Way, lane_bits: int, words: int, average: bool
) -> None:
    workers = 3
    how: dict[str, Any] = {"options": {"lane_bits": lane_bits, "device_sums": way}, "average": average}
    with sessions(workers, words) as ranks:
        for elements in SIZES:
            for specials in (False, True) if elements > 1 else (False,):
                given = inputs(workers, elements, specials)
                expected = [tensor.clone() for tensor in given]
                wait_all(sums(ranks, expected, [False] * workers, **how))
                for staged in PLACES:
                    tensors = [tensor.clone() for tensor in given]
                    wait_all(sums(ranks, tensors, staged, **how))
                    for tensor in tensors:
                        assert bits(tensor) == bits(expected[0])


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_residuals_and_stochastic_rounding_are_those_of_the_core(way: Way, rounding: str) -> None:
    workers, elements = 2, 9001
    given = inputs(workers, elements, True)
    found = []
    for staged in (False, True):
        # New sessions, because each sum of a job has a different seed.
        with sessions(workers) as ranks:
            tensors = [tensor.clone() for tensor in given]
            left = [torch.full((elements,), 7.0) for _ in ranks]
            how: dict[str, Any] = {
                "options": {"lane_bits": 8, "rounding": rounding, "seed": 5, "device_sums": way},
                "residuals": left,
            }
            wait_all(sums(ranks, tensors, [staged] * workers, **how))
            found.append([bits(tensor) for tensor in (*tensors, *left)])
    assert found[0] == found[1]


def test_many_under_way_on_the_device_and_in_the_core_with_loss(way: Way) -> None:
    workers = 2
    sizes = [1, 5000, 0, 300, 4000 if INTERPRETED else 40_000, 256, 33, 900, 2, 1023] * 2
    with sessions(workers, loss=0.02) as ranks:
        given = [inputs(workers, size, size > 1) for size in sizes]
        expected = [[tensor.clone() for tensor in tensors] for tensors in given]
        for tensors in expected:
            wait_all(sums(ranks, tensors, [False] * workers))
        under_way = [
            sums(
                ranks,
                tensors,
                [number % 3 != rank for rank in range(workers)],
                options={"device_sums": way},
            )
            for number, tensors in enumerate(given)
        ]
        for reductions in reversed(under_way):
            wait_all(reductions)
        for tensors, right in zip(given, expected, strict=True):
            assert bits(tensors[0]) == bits(tensors[1]) == bits(right[0])


def test_a_tensor_made_in_inference_mode_is_summed(way: Way) -> None:
    with sessions(1) as (one,), torch.inference_mode():
        tensor = torch.ones(1000)
        wait_all(sums([one], [tensor], [True], options={"device_sums": way}))
        assert tensor.tolist() == [1.0] * 1000


def test_what_goes_wrong_on_the_device_fails_the_sum_and_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no memory left")

    for stage in ("quantise", "sums"):
        with sessions(1) as (one,), monkeypatch.context() as patched:
            patched.setattr(_by_torch, stage, exhausted)
            (reduction,) = sums([one], [torch.ones(5000)], [True], options={"device_sums": "torch"})
            assert reduction.wait(20.0)
            assert isinstance(reduction.error, JobError)
            assert "OutOfMemoryError: no memory left" in str(reduction.error)
            wait_until(
                lambda: "no memory left" in getattr(one._client, "left_with", ""), "what the other ranks get"
            )
            with pytest.raises(InaggError, match="no memory left"):
                one.sums.submit(torch.ones(3), options=STAGED, call="")


def test_a_failure_ends_sums_in_every_stage_and_the_threads(way: Way) -> None:
    before = threading.active_count()
    how: dict[str, Any] = {"options": {"device_sums": way}}
    with sessions(2) as ranks:
        tensors = [inputs(2, 20_000, True) for _ in range(6)]
        wait_all(sums(ranks, tensors[0], [True, True], **how))
        # The other rank does not call these sums, so they never complete.
        endless = [sums(ranks[:1], pair[:1], [True], **how)[0] for pair in tensors[1:]]
        ranks[0].fail("enough")
        for reduction in endless:
            assert reduction.wait(20.0)
            assert isinstance(reduction.error, JobError)
            assert reduction.query()
    assert threading.active_count() == before


def test_pinned_memory_is_kept_until_the_device_is_through_with_it(way: Way) -> None:
    with sessions(1) as (one,):
        tensor = torch.ones(1000)
        how: dict[str, Any] = {"options": {"device_sums": way}}
        wait_all(sums([one], [tensor], [True], **how))
        (stages,) = one.sums._devices._stages.values()
        outputs, _, pinned = stages._ended.pop()
        assert any(memory.numel() > 0 for memory in pinned)
        late = LateEvent()
        kept = weakref.ref(pinned[0])
        stages._ended.append((outputs, late, pinned))
        del pinned
        wait_all(sums([one], [torch.ones(5)], [True], **how))
        gc.collect()
        assert kept() is not None
        late.reached = True
        wait_all(sums([one], [torch.ones(5)], [True], **how))
        gc.collect()
        assert kept() is None


def test_a_device_without_triton_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ways, "_problems", {torch.device("cpu"): "it is not installed"})
    with sessions(1) as (one,), pytest.raises(ConfigurationError, match=r"triton.*cpu: it is not installed"):
        sums([one], [torch.ones(5)], [True], options={"device_sums": "triton"})


def test_half_floats_that_were_kept_are_summed_by_the_core_whatever_their_number() -> None:
    given = [torch.randn(5000, generator=torch.Generator().manual_seed(rank)).bfloat16() for rank in range(2)]
    how: dict[str, Any] = {"options": {"lane_bits": 8, "device_sums": "torch"}}
    with sessions(2) as ranks:
        expected = [tensor.clone() for tensor in given]
        wait_all(sums(ranks, expected, [False, False], **how))
        wait_all(sums(ranks, given, [True, False], **how))
        assert torch.equal(given[0], expected[0])
        assert torch.equal(given[1], expected[1])


def test_the_default_type_of_floats_changes_no_result() -> None:
    how: dict[str, Any] = {"options": {"device_sums": "torch"}, "average": True}
    default = torch.get_default_dtype()
    with sessions(3) as ranks:
        tensors = inputs(3, 3000, False)
        expected = [tensor.clone() for tensor in tensors]
        wait_all(sums(ranks, expected, [False] * 3, **how))
        torch.set_default_dtype(torch.bfloat16)
        try:
            wait_all(sums(ranks, tensors, [True] * 3, **how))
        finally:
            torch.set_default_dtype(default)
        assert bits(tensors[0]) == bits(expected[0])


def test_a_step_that_fails_lets_the_device_finish_before_its_memory_is_let_go_of(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []

    class Counted:
        def synchronize(self) -> None:
            waited.append(threading.current_thread().name)

    def fail(self: _sums.DeviceSum, stream: Any) -> None:
        monkeypatch.setattr(stream, "record", Counted)
        raise RuntimeError("broken")

    kind = _sums.CopiedSum if way == "host" else _sums.StagedSum
    for step in ("scan", "pack", "unpack") if kind.packs else ("scan", "unpack"):
        waited.clear()
        with sessions(1) as (one,), monkeypatch.context() as patched:
            patched.setattr(kind, step, fail)
            (reduction,) = sums([one], [torch.ones(5000)], [True], options={"device_sums": way})
            assert reduction.wait(20.0)
            assert "RuntimeError: broken" in str(reduction.error)
            wait_until(lambda: waited == [f"inagg-{step}-cpu"], "the step's stream")  # noqa: B023


def test_who_makes_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    problems: dict[str, str | None] = {"cuda": None}
    monkeypatch.setattr(_ways, "triton_problem", lambda device: problems[device.type])
    large, small = (cast(torch.Tensor, _Sized(_ways.LEAST_FOR_KERNELS - less)) for less in (0, 1))
    halves = cast(torch.Tensor, _Sized(_ways.LEAST_FOR_KERNELS, 2))
    for lane_bits, tensor, expected in (
        (8, large, "triton"),
        (16, large, "triton"),
        (32, large, "host"),
        (8, small, "host"),
        (8, halves, "triton"),
        (16, halves, "host"),
    ):
        assert _ways.way_of(tensor, PLAIN.model_copy(update={"lane_bits": lane_bits})) == expected
    problems["cuda"] = "no"
    narrow = PLAIN.model_copy(update={"lane_bits": 8})
    assert _ways.way_of(large, narrow) == "host"
    assert _ways.way_of(small, narrow.model_copy(update={"device_sums": "torch"})) == "torch"
    assert _ways.way_of(torch.ones(5), narrow) is None


class _Sized:
    """A tensor on a GPU, as far as `way_of` looks."""

    device = torch.device("cuda", 0)

    def __init__(self, elements: int, size: int = 4) -> None:
        self._elements, self._size = elements, size

    def numel(self) -> int:
        return self._elements

    def element_size(self) -> int:
        return self._size


class LateEvent:
    """The end of a sum that the device has not reached."""

    def __init__(self) -> None:
        self.held_back: list[str] = []
        self.reached = False

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return self.reached

    def block_current_stream(self) -> None:
        self.held_back.append(threading.current_thread().name)


def test_a_sum_comes_after_one_of_the_same_memory_that_nobody_has_waited_for() -> None:
    # For the host the earlier sum has ended; the device may still work on it.
    with sessions(1) as (one,):
        tensor, other = torch.ones(1000), torch.ones(1000)
        wait_all(sums([one], [tensor], [True]))
        (stages,) = one.sums._devices._stages.values()
        late = LateEvent()
        address = tensor.data_ptr()
        stages._ended.append(([range(address, address + 4000)], late, ()))
        wait_all(sums([one], [other], [True]))
        assert late.held_back == []
        wait_all(sums([one], [tensor[500:]], [True]))
        assert late.held_back == [threading.current_thread().name]


def test_when_a_sum_is_over_nothing_keeps_its_tensor(way: Way) -> None:
    with sessions(1) as (one,):
        tensor = torch.ones(1000)
        kept = weakref.ref(tensor)
        reductions = sums([one], [tensor], [True], options={"device_sums": way})
        wait_all(reductions)
        del tensor, reductions
        wait_until(lambda: gc.collect() >= 0 and kept() is None, "nothing keeps it")
