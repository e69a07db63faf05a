# SPDX-License-Identifier: Apache-2.0
"""The end of a sum: its result reaches the tensor or its error the program, whatever fails on the way."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from inagg.errors import DeliveryError
from inagg.membership.session import Session
from inagg.sums.reduction import Reduction
from inagg.sums.work import SwitchWork
from tests.hostlib.device.rank_sessions import PLAIN, sessions

WITHIN_S = 20.0


@pytest.fixture
def ranks() -> Iterator[list[Session]]:
    with sessions(2) as both:
        yield both


def submit(rank: Session, deliver: Callable[[], None] | None = None) -> Reduction:
    return rank.sums.submit(torch.ones(300, device="cpu"), options=PLAIN, call="", deliver=deliver)


def fail() -> None:
    raise MemoryError("no room for the result")


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_waiting_program_gets_the_error_of_a_failed_delivery(ranks: list[Session]) -> None:
    work = SwitchWork([], [submit(ranks[0], fail)])
    good = SwitchWork([], [submit(ranks[1])])
    for _ in range(2):
        with pytest.raises(DeliveryError, match="MemoryError: no room for the result"):
            work.wait()
    assert good.wait()
    assert work.is_completed()
    assert not work.is_success()


def test_a_future_gets_the_error_of_a_failed_delivery(ranks: list[Session]) -> None:
    future = SwitchWork([], [submit(ranks[0], fail)]).get_future()
    submit(ranks[1])
    wait_for(future.done)
    with pytest.raises(RuntimeError, match="no room for the result"):
        future.wait()


def test_sums_after_a_failed_delivery_are_done(ranks: list[Session]) -> None:
    submit(ranks[0], fail).deliver_unasked()
    submit(ranks[1])
    for _ in range(20):
        futures = [SwitchWork([], [submit(rank, lambda: None)]).get_future() for rank in ranks]
        for future in futures:
            wait_for(future.done)
            future.wait()
    assert ranks[0].failure is None


def test_a_delivery_writes_to_tensors_made_in_inference_mode(ranks: list[Session]) -> None:
    with torch.inference_mode():
        result = torch.zeros(3)

    def deliver() -> None:
        result.fill_(7.0)

    future = SwitchWork([result], [submit(ranks[0], deliver)]).get_future()
    submit(ranks[1])
    wait_for(future.done)
    assert future.wait()[0].tolist() == [7.0] * 3


def test_an_interrupted_delivery_is_made_again(ranks: list[Session]) -> None:
    interrupted = threading.Event()

    def deliver() -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    reduction = submit(ranks[0], deliver)
    submit(ranks[1])
    with pytest.raises(KeyboardInterrupt):
        reduction.wait(WITHIN_S)
    wait_for(lambda: reduction.finished)  # nobody has waited again
    assert reduction.error is None


def test_a_callback_that_fails_leaves_the_others(
    ranks: list[Session], caplog: pytest.LogCaptureFixture
) -> None:
    reduction, called = submit(ranks[0]), threading.Event()
    reduction.on_finished(fail)
    reduction.on_finished(called.set)
    submit(ranks[1])
    assert called.wait(WITHIN_S)
    assert "no room for the result" in caplog.text


def test_a_futures_callbacks_run_in_the_modes_of_who_asked_for_it(ranks: list[Session]) -> None:
    def modes() -> list[object]:
        return [
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None,
            torch.empty(0).device.type,
        ]

    contexts: list[Callable[[], object]] = [
        torch.enable_grad,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.float16),
        lambda: torch.device("meta"),
    ]
    for context in contexts:
        with context():  # type: ignore[attr-defined]
            here = modes()
            future = SwitchWork([], [submit(ranks[0])]).get_future()
        thread = future.then(lambda _: threading.current_thread().name)
        there = future.then(lambda _: modes())
        submit(ranks[1])
        wait_for(there.done)
        assert there.value() == here
        assert thread.value().startswith("inagg-done")
    # The thread itself has none of these modes left.
    future = SwitchWork([], [submit(ranks[0])]).get_future()
    left = future.then(lambda _: modes())
    submit(ranks[1])
    wait_for(left.done)
    assert left.value() == [True, False, False, None, "cpu"]
