# SPDX-License-Identifier: Apache-2.0
"""The Work of an asynchronous all-reduce, as torch uses it."""

import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch

from inagg.errors import InaggError, JobError, PeerLostError
from inagg.sums.work import SwitchWork

LOST = PeerLostError([2], reason="no heartbeat for 3.0 s", job=1, rank=0, chunk=77)


class Part:
    """An all-reduce that finishes when the test finishes it."""

    def __init__(self) -> None:
        self.error: InaggError | None = None
        self.device = torch.device("cpu")
        self.held_back = 0  # how often a stream was made to wait for the result
        self.arrived = True
        self._done = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def finished(self) -> bool:
        return self._done.is_set()

    def finish(self, error: InaggError | None = None) -> None:
        self.error = error
        self._done.set()
        for callback in self._callbacks:
            callback()

    def wait(self, timeout_s: float | None) -> bool:
        return self._done.wait(timeout_s)

    def query(self) -> bool:
        return self.arrived

    def block_current_stream(self) -> None:
        self.held_back += 1

    def on_finished(self, callback: Callable[[], None]) -> None:
        if self.finished:
            callback()
        else:
            self._callbacks.append(callback)


def test_is_done_when_every_part_is() -> None:
    parts = [Part(), Part()]
    work = SwitchWork([torch.zeros(1), torch.zeros(2)], parts)
    future = work.get_future()
    parts[1].finish()
    assert not work.is_completed()
    assert not future.done()
    parts[0].finish()
    assert work.is_completed()
    assert work.is_success()
    assert work.wait()
    assert future.done()
    assert work.get_future() is future


def test_the_future_carries_the_tensors_whenever_it_is_asked_for() -> None:
    tensors = [torch.ones(3)]
    part = Part()
    work = SwitchWork(tensors, [part])
    part.finish()
    assert work.get_future().wait() == tensors
    assert work.result() == tensors


def test_after_a_wait_the_future_is_done_although_the_thread_for_callbacks_has_not_come_to_it() -> None:
    class Late(Part):
        def on_finished(self, callback: Callable[[], None]) -> None:
            """Like a completer that the system does not run."""

    for asked_first in (True, False):
        for error in (None, LOST):
            part = Late()
            work = SwitchWork([torch.ones(3)], [part])
            if asked_first:
                work.get_future()
            part.finish(error)
            with contextlib.nullcontext() if error is None else pytest.raises(PeerLostError):
                work.wait()
            assert work.get_future().done()


def test_without_parts_it_is_done_at_once() -> None:
    work = SwitchWork([], [])
    assert work.wait()
    assert work.get_future().wait() == []


def test_who_waits_makes_the_current_stream_wait_and_so_does_the_future() -> None:
    parts = [Part(), Part()]
    work = SwitchWork([torch.ones(3)], parts)
    for part in parts:
        part.finish()
    assert [part.held_back for part in parts] == [0, 0]
    work.wait()
    assert [part.held_back for part in parts] == [1, 1]
    work.get_future().wait()
    assert [part.held_back for part in parts] == [2, 2]


def test_what_the_device_has_not_come_to_is_not_completed() -> None:
    part = Part()
    work = SwitchWork([torch.ones(3)], [part])
    part.arrived = False
    part.finish()
    assert not work.is_completed()
    part.arrived = True
    assert work.is_completed()


def test_wait_raises_the_error_itself() -> None:
    part = Part()
    work = SwitchWork([torch.zeros(1)], [part])
    part.finish(LOST)
    assert work.is_completed()
    assert not work.is_success()
    assert work.exception() is LOST
    with pytest.raises(PeerLostError, match=r"lost rank 2\b.*oldest chunk without a result is 77"):
        work.wait()


def test_the_future_raises_an_error_with_its_message() -> None:
    # DDP's reducer is C++ and waits on the future: it must see a failure, not an exception object as a value.
    part = Part()
    work = SwitchWork([torch.zeros(1)], [part])
    part.finish(LOST)
    with pytest.raises(RuntimeError, match=r"lost rank 2\b.*77"):
        work.get_future().wait()


def test_what_could_not_be_submitted_fails_when_the_rest_is_done() -> None:
    part = Part()
    work = SwitchWork([torch.zeros(1)] * 2, [part], JobError("the job has ended"))
    assert not work.is_completed()
    part.finish()
    with pytest.raises(JobError, match="the job has ended"):
        work.wait()
    with pytest.raises(RuntimeError, match="the job has ended"):
        work.get_future().wait()


def test_wait_gives_up_after_its_timeout_and_the_work_goes_on() -> None:
    part = Part()
    work = SwitchWork([torch.zeros(1)], [part])
    with pytest.raises(TimeoutError, match=r"not done after 0\.01 s"):
        work.wait(timedelta(milliseconds=10))
    part.finish()
    assert work.wait(timedelta(milliseconds=10))
