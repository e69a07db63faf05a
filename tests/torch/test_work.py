"""What torch sees of an asynchronous all-reduce."""

from datetime import timedelta

import pytest
import torch

from inagg._work import AllReduceWork
from inagg.errors import JobError, PeerLostError

LOST = PeerLostError([2], reason="no heartbeat for 3.0 s", job=1, rank=0, chunk=77)


def test_is_done_when_every_part_is() -> None:
    work = AllReduceWork([torch.zeros(1), torch.zeros(2)], 2)
    work.part_done(None)
    assert not work.is_completed()
    assert not work.get_future().done()
    work.part_done(None)
    assert work.is_completed()
    assert work.is_success()
    assert work.wait()


def test_the_future_carries_the_tensors() -> None:
    tensors = [torch.ones(3)]
    work = AllReduceWork(tensors, 1)
    work.part_done(None)
    assert work.get_future().wait() == tensors
    assert work.result() == tensors


def test_without_parts_it_is_done_at_once() -> None:
    assert AllReduceWork([], 0).wait()


def test_wait_raises_the_error_itself() -> None:
    work = AllReduceWork([torch.zeros(1)], 1)
    work.part_done(LOST)
    assert work.is_completed()
    assert not work.is_success()
    assert work.exception() is LOST
    with pytest.raises(PeerLostError, match=r"lost rank 2 .*oldest chunk without a result is 77"):
        work.wait()


def test_the_future_raises_an_error_with_its_message() -> None:
    # DDP's reducer is C++ and waits on the future: it must see a failure, not an exception object as a value.
    work = AllReduceWork([torch.zeros(1)], 1)
    work.part_done(LOST)
    with pytest.raises(RuntimeError, match=r"lost rank 2 .*77"):
        work.get_future().wait()


def test_the_first_error_of_several_parts_stays() -> None:
    work = AllReduceWork([torch.zeros(1)] * 2, 2)
    work.part_done(LOST)
    work.part_done(JobError("another"))
    assert work.exception() is LOST


def test_wait_gives_up_after_its_timeout_and_the_work_goes_on() -> None:
    work = AllReduceWork([torch.zeros(1)], 1)
    with pytest.raises(TimeoutError, match=r"not done after 0\.01 s"):
        work.wait(timedelta(milliseconds=10))
    work.part_done(None)
    assert work.wait(timedelta(milliseconds=10))
