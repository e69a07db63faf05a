# SPDX-License-Identifier: Apache-2.0
"""Ranks that train without exchanging gradients are reported; training that exchanges something else is not."""

from collections.abc import Callable, Iterator

import pytest
import torch

from inagg.counters import Tally
from inagg.lone_training import LONG_ENOUGH, TrainingWatch

GRADIENTS = 4 * (8 * 4 + 4)  # bytes of the model below


class Training:
    """Optimizer steps of one rank, watched."""

    def __init__(self, rank: int = 0, sees_all: bool = True) -> None:
        self.group = Tally()
        self.watch = TrainingWatch(rank, 2, lambda: [self.group.snapshot()], lambda: sees_all)
        self._model = torch.nn.Linear(8, 4)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)

    def steps(self, count: int, exchange: Callable[[int], None] = lambda step: None) -> None:
        for step in range(count):
            self._optimizer.zero_grad()
            self._model(torch.ones(1, 8)).sum().backward()
            exchange(step)
            self._optimizer.step()


@pytest.fixture
def training() -> Iterator[Training]:
    made = Training()
    yield made
    made.watch.end()


def test_steps_without_an_exchange_are_reported_once(
    training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    training.steps(3)
    training.group.begin("all_gather", 1000)  # of results, after training
    training.watch.end()
    training.watch.end()
    (record,) = caplog.records
    assert "3 optimizer steps on each of 2 ranks, and 0 bytes in collectives" in record.getMessage()
    assert f"one set of gradients ({GRADIENTS} bytes)" in record.getMessage()


def test_a_metric_now_and_then_does_not_hide_it(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    def metric(step: int) -> None:
        if step % 5 == 1:
            training.group.begin("all_reduce", 8)

    training.steps(10, metric)
    training.watch.end()
    assert "16 bytes in collectives" in caplog.text


def test_a_long_run_is_reported_before_its_end(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    training.steps(LONG_ENOUGH - 1)
    assert not caplog.records
    training.steps(1)
    assert f"{LONG_ENOUGH} optimizer steps" in caplog.text


def data_parallel(training: Training, _step: int) -> None:
    training.group.begin("all_reduce", GRADIENTS)


def averaging_at_times(training: Training, step: int) -> None:
    if step == 7:
        training.group.begin("all_reduce", GRADIENTS)


def a_parallel_model_of_small_activations(training: Training, _step: int) -> None:
    training.group.begin("all_reduce", 4)


def a_pipeline_of_few_steps(training: Training, step: int) -> None:
    if step == 1:
        training.group.begin("send", 4)


@pytest.mark.parametrize(
    "exchange",
    [data_parallel, averaging_at_times, a_parallel_model_of_small_activations, a_pipeline_of_few_steps],
)
def test_what_exchanges_enough_is_not_reported(
    training: Training, caplog: pytest.LogCaptureFixture, exchange: Callable[[Training, int], None]
) -> None:
    training.steps(9, lambda step: exchange(training, step))
    training.watch.end()
    assert not caplog.records


def test_two_steps_are_no_training(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    training.steps(2)
    training.watch.end()
    assert not caplog.records


@pytest.mark.parametrize(
    ("rank", "sees_all", "failed"), [(1, True, False), (0, False, False), (0, True, True)]
)
def test_other_ranks_other_groups_and_failed_programs_say_nothing(
    caplog: pytest.LogCaptureFixture, rank: int, sees_all: bool, failed: bool
) -> None:
    training = Training(rank, sees_all)
    training.steps(5)
    training.watch.end(failed=failed)
    assert not caplog.records


def test_steps_after_the_end_are_not_counted(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    training.steps(1)
    training.watch.end()
    training.steps(9)
    training.watch.end()
    assert not caplog.records
