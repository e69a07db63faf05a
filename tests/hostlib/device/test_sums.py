# SPDX-License-Identifier: Apache-2.0
"""Staged sums of CPU tensors in place of CUDA tensors; only streams are missing.

Results are compared, bit for bit, with those of ranks whose tensors the core has.
"""

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from inagg.device import staged as _staged
from inagg.errors import InaggError, JobError
from tests.hostlib.device.rank_sessions import STAGED, bits, inputs, sessions, sums, wait_all
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("small_portions")


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a portion to 2048 elements, so that tensors of a few thousand elements take several portions."""
    monkeypatch.setattr(_staged, "PORTION", 2048)


@pytest.mark.parametrize("average", [False, True], ids=["sum", "mean"])
@pytest.mark.parametrize("words", [4, 32])
@pytest.mark.parametrize("lane_bits", [8, 16, 32])
def test_results_are_those_of_the_core_whichever_ranks_are_staged(
    lane_bits: int, words: int, average: bool
) -> None:
    workers = 3
    how: dict[str, Any] = {"options": {"lane_bits": lane_bits}, "average": average}
    with sessions(workers, words) as ranks:
        for elements in (0, 1, 255, 256, 5000, 30_001):
            for specials in (False, True) if elements > 1 else (False,):
                given = inputs(workers, elements, specials)
                expected = [tensor.clone() for tensor in given]
                wait_all(sums(ranks, expected, [False] * workers, **how))
                for staged in ([True] * workers, [False, True, False]):
                    tensors = [tensor.clone() for tensor in given]
                    wait_all(sums(ranks, tensors, staged, **how))
                    for tensor in tensors:
                        assert bits(tensor) == bits(expected[0])


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_residuals_and_stochastic_rounding_are_those_of_the_core(rounding: str) -> None:
    workers, elements = 2, 9001
    given = inputs(workers, elements, True)
    found = []
    for staged in (False, True):
        # New sessions, because each sum of a job has a different seed.
        with sessions(workers) as ranks:
            tensors = [tensor.clone() for tensor in given]
            left = [torch.full((elements,), 7.0) for _ in ranks]
            how: dict[str, Any] = {
                "options": {"lane_bits": 8, "rounding": rounding, "seed": 5},
                "residuals": left,
            }
            wait_all(sums(ranks, tensors, [staged] * workers, **how))
            found.append([bits(tensor) for tensor in (*tensors, *left)])
    assert found[0] == found[1]


def test_many_under_way_in_both_ways_with_loss() -> None:
    workers = 2
    sizes = [1, 5000, 0, 300, 40_000, 256, 33, 9000, 2, 1023] * 2
    with sessions(workers, loss=0.02) as ranks:
        given = [inputs(workers, size, size > 1) for size in sizes]
        expected = [[tensor.clone() for tensor in tensors] for tensors in given]
        for tensors in expected:
            wait_all(sums(ranks, tensors, [False] * workers))
        under_way = [
            sums(ranks, tensors, [number % 3 != rank for rank in range(workers)])
            for number, tensors in enumerate(given)
        ]
        for reductions in reversed(under_way):
            wait_all(reductions)
        for tensors, right in zip(given, expected, strict=True):
            assert bits(tensors[0]) == bits(tensors[1]) == bits(right[0])


def test_a_tensor_made_in_inference_mode_is_summed() -> None:
    with sessions(1) as (one,), torch.inference_mode():
        tensor = torch.ones(1000)
        wait_all(sums([one], [tensor], [True]))
        assert tensor.tolist() == [1.0] * 1000


def test_what_goes_wrong_on_the_device_fails_the_sum_and_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no memory left")

    for stage in ("quantise", "sums"):
        with sessions(1) as (one,), monkeypatch.context() as patched:
            patched.setattr(_staged, stage, exhausted)
            (reduction,) = sums([one], [torch.ones(5000)], [True])
            assert reduction.wait(20.0)
            assert isinstance(reduction.error, JobError)
            assert "OutOfMemoryError: no memory left" in str(reduction.error)
            wait_until(
                lambda: "no memory left" in getattr(one._client, "left_with", ""), "what the other ranks get"
            )
            with pytest.raises(InaggError, match="no memory left"):
                one.sums.submit(torch.ones(3), options=STAGED, call="")


def test_a_failure_ends_sums_in_every_stage_and_the_threads() -> None:
    before = threading.active_count()
    with sessions(2) as ranks:
        tensors = [inputs(2, 20_000, True) for _ in range(6)]
        wait_all(sums(ranks, tensors[0], [True, True]))
        # The other rank does not call these sums, so they never complete.
        endless = [sums(ranks[:1], pair[:1], [True])[0] for pair in tensors[1:]]
        ranks[0].fail("enough")
        for reduction in endless:
            assert reduction.wait(20.0)
            assert isinstance(reduction.error, JobError)
            assert reduction.query()
    assert threading.active_count() == before


class LateEvent:
    """The end of a sum that the device has not reached."""

    def __init__(self) -> None:
        self.held_back: list[str] = []

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return False

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
        stages._ended.append((range(address, address + 4000), late))
        wait_all(sums([one], [other], [True]))
        assert late.held_back == []
        wait_all(sums([one], [tensor[500:]], [True]))
        assert late.held_back == [threading.current_thread().name]


def test_when_a_sum_is_over_nothing_keeps_its_tensor() -> None:
    with sessions(1) as (one,):
        tensor = torch.ones(1000)
        kept = weakref.ref(tensor)
        reductions = sums([one], [tensor], [True])
        wait_all(reductions)
        del tensor, reductions
        wait_until(lambda: gc.collect() >= 0 and kept() is None, "nothing keeps it")
