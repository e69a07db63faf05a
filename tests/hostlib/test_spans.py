# SPDX-License-Identifier: Apache-2.0
"""What a rank records of its steps."""

import threading
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint

from inagg.spans import MOST_STEPS, OPTIMIZER, WAIT, Recorder, Span
from inagg.training_spans import watch_optimizers, watch_training


def test_the_end_of_a_backward_pass_is_a_wait_while_sums_are_under_way() -> None:
    recorder = Recorder(10.0)
    recorder.loaded(10.0, 10.1)
    recorder.backward(10.3, 10.5, 10.9)
    recorder.collective("all_reduce", 4000, 10.4, 10.8)
    recorder.add(Span(OPTIMIZER, 10.9, 11.0))
    recorder.end_step(11.0)
    (step,) = recorder.steps()
    assert (step.number, step.begin_s, step.end_s) == (0, 10.0, 11.0)
    assert step.spans == [
        ("data loading", 10.0, 10.1, 0),
        ("forward", 10.1, 10.3, 0),
        ("backward", 10.3, 10.5, 0),
        ("all_reduce", 10.4, 10.8, 4000),
        ("optimizer", 10.9, 11.0, 0),
        ("wait", 10.5, 10.8, 0),
    ]


def test_a_backward_pass_without_sums_has_no_wait() -> None:
    recorder = Recorder(0.0)
    recorder.collective("broadcast", 8, 0.0, 0.1)
    recorder.backward(0.2, 0.3, 0.4)
    recorder.end_step(0.5)
    assert [span.kind for span in recorder.steps()[0].spans] == ["broadcast", "forward", "backward"]


def test_only_the_last_steps_are_kept() -> None:
    recorder = Recorder(0.0)
    for number in range(MOST_STEPS + 3):
        recorder.end_step(number + 1.0)
    assert [step.number for step in recorder.steps()] == list(range(3, MOST_STEPS + 3))


def test_waits_of_other_threads_are_not_the_programs() -> None:
    recorder = Recorder(0.0)

    def wait() -> None:
        with recorder.during(WAIT):
            pass

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    recorder.end_step(1.0)
    wait()
    recorder.end_step(2.0)
    assert [[span.kind for span in step.spans] for step in recorder.steps()] == [[], [WAIT]]


def test_a_training_that_ends_no_steps_keeps_a_bounded_number_of_waits() -> None:
    recorder = Recorder(0.0)
    recorder.collective("all_reduce", 4, 0.0, 1.0)
    for _ in range(5000):
        recorder.backward(0.1, 0.2, 0.3)
    recorder.end_step(2.0)
    assert [span.kind for span in recorder.steps()[0].spans].count(WAIT) == 1024


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Of what torch does in the test."""
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)  # is put back
    recorder = Recorder(0.0)
    watch_training(recorder)
    return recorder


def assert_in_sequence(recorder: Recorder, *kinds: str) -> None:
    """The recorder has one step. Each of its spans begins after the one before has ended."""
    (step,) = recorder.steps()
    assert [span.kind for span in step.spans] == list(kinds)
    times = [time_s for span in step.spans for time_s in (span.begin_s, span.end_s)]
    assert times == sorted(times)


def test_torchs_passes_and_steps_are_recorded(recorder: Recorder) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    (weight * 2).sum().backward()
    optimizer.step()
    assert weight.tolist() == [0.0] * 3
    (step,) = recorder.steps()
    forward, backward, stepping = step.spans
    assert [span.kind for span in step.spans] == ["forward", "backward", "optimizer"]
    assert (
        forward.end_s == backward.begin_s < backward.end_s <= stepping.begin_s < stepping.end_s <= step.end_s
    )


def test_a_pass_within_a_pass_is_a_part_of_it(recorder: Recorder) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    hidden = checkpoint(lambda value: value * weight, torch.ones(3, requires_grad=True), use_reentrant=True)
    hidden.sum().backward()
    torch.optim.SGD([weight], lr=0.5).step()
    assert weight.tolist() == [0.5] * 3
    assert_in_sequence(recorder, "forward", "backward", "optimizer")


def test_each_pass_of_a_step_is_recorded(recorder: Recorder) -> None:
    """Pipelines have a pass for each micro-batch. Their roots may be any iterable of tensors and edges."""
    weight = torch.nn.Parameter(torch.ones(2))
    torch.autograd.backward([(weight * 1).sum(), (weight * 2).sum()])
    torch.autograd.backward(iter([(weight * 3).sum(), (weight * 4).sum()]))  # type: ignore[arg-type]
    torch.autograd.backward(get_gradient_edge((weight * 5).sum()), torch.ones(()))
    torch.optim.SGD([weight], lr=1.0).step()
    assert weight.tolist() == [1.0 - 15] * 2
    assert_in_sequence(recorder, *["forward", "backward"] * 3, "optimizer")


def test_a_pass_that_fails_ends(recorder: Recorder) -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(()).backward()
    weight = torch.nn.Parameter(torch.ones(()))
    weight.square().backward()
    torch.optim.SGD([weight], lr=0.5).step()
    assert_in_sequence(recorder, *["forward", "backward"] * 2, "optimizer")


@pytest.fixture
def world() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_the_step_of_an_optimizer_within_an_optimizer_ends_no_step(recorder: Recorder) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of torch.jit, which it uses

    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = ZeroRedundancyOptimizer([weight], torch.optim.SGD, lr=0.5)
    ended: list[torch.optim.Optimizer] = []
    watch_optimizers(lambda optimizer, _begin_s, _end_s: ended.append(optimizer))
    for _ in range(2):
        (weight * 2).sum().backward()
        optimizer.step()
    assert ended == [optimizer] * 2
    assert [[span.kind for span in step.spans] for step in recorder.steps()] == [
        ["forward", "backward", "optimizer"]
    ] * 2


@pytest.mark.parametrize("is_replaced", [False, True])
def test_steps_after_a_step_that_raised_are_recorded(recorder: Recorder, is_replaced: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(3))

    def fail() -> float:
        raise ValueError("bad loss")

    optimizer = torch.optim.SGD([weight], lr=0.5)
    with pytest.raises(ValueError, match="bad loss"):
        optimizer.step(fail)
    if is_replaced:
        optimizer = torch.optim.SGD([weight], lr=0.5)
    optimizer.step()
    assert_in_sequence(recorder, "optimizer")
