# SPDX-License-Identifier: Apache-2.0
"""What a rank records of its steps."""

import threading

import pytest
import torch

from inagg.spans import MOST_STEPS, OPTIMIZER, WAIT, Recorder, Span
from inagg.training_spans import watch_training


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


def test_torchs_passes_and_steps_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)  # is put back
    recorder = Recorder(0.0)
    watch_training(recorder)
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
