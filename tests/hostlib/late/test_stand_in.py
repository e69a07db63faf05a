# SPDX-License-Identifier: Apache-2.0
"""The thread that stands in: how often it asks torch's store, a store that is busy, and errors of the thread."""

import logging
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from torch._C._distributed_c10d import HashStore, TCPStore

import inagg
from inagg.inner.reports import Reports
from inagg.late.arrivals import Arrivals
from inagg.late.roll_call import RollCall
from inagg.late.stand_in import StandIn
from inagg.late.sums import BucketSums
from inagg.late.turns import Bucket, Turn
from inagg.residuals import Residuals
from tests.waiting import wait_until

STEPS = 6  # so that there is a deadline


class CountedRollCall(RollCall):
    """Notes when it is asked."""

    def __init__(self, store: HashStore) -> None:
        super().__init__(store)
        self.asked_at: list[float] = []

    def count(self, turn: Turn, bucket: Bucket) -> int:
        self.asked_at.append(time.monotonic())
        return super().count(turn, bucket)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[inagg.ProcessGroup]:
    monkeypatch.delenv("INAGG_CONTROLLER", raising=False)
    group = inagg.ProcessGroup.create(HashStore(), 0, 1)
    yield group
    group.shutdown()


def bucket_of(elements: int) -> Bucket:
    parameter = torch.empty(elements, device="meta")
    return Bucket((parameter,), (0,), ((1,),), torch.float32, torch.device("cpu"), True)


def trained(group: inagg.ProcessGroup, bucket: Bucket) -> BucketSums:
    """After some steps. The program does not come to the next one."""
    sums = BucketSums(group, Residuals(bucket.parameters), Arrivals(0.9, 1.5))
    for _ in range(STEPS):
        sums.hand_in(bucket, torch.ones(4)).wait()
    return sums


def test_it_asks_ever_less_often_in_a_pause(group: inagg.ProcessGroup) -> None:
    roll_call = CountedRollCall(HashStore())
    stand_in = StandIn(trained(group, bucket_of(4)), roll_call, least=2, most_behind=16)
    wait_until(lambda: len(roll_call.asked_at) > 80, "80 questions", timeout_s=60)
    stand_in.close()
    assert roll_call.asked_at[80] - roll_call.asked_at[0] > 0.5  # every 2 ms it would be 0.16 s


def test_an_error_of_the_thread_is_named_and_the_next_try_succeeds(
    group: inagg.ProcessGroup, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    store, bucket = HashStore(), bucket_of(2**50)  # more zeros than any machine has memory for
    sums = trained(group, bucket)
    RollCall(store).here(Turn(STEPS, 0), bucket)
    stand_in = StandIn(sums, RollCall(store), least=1, most_behind=16)
    wait_until(
        lambda: "could not contribute in place of the late program (RuntimeError: " in caplog.text, "an error"
    )
    sums.turns.last_step = [bucket_of(4)]
    RollCall(store).here(Turn(STEPS, 0), bucket_of(4))
    wait_until(lambda: sums.unclaimed_steps == 1, "the thread's contribution")
    stand_in.close()
    assert "torch's store" not in caplog.text


def test_nothing_waits_for_a_thread_that_waits_in_torchs_store() -> None:
    store = TCPStore("127.0.0.1", 0, None, True)
    if not hasattr(store, "clone"):
        pytest.skip("this release of torch has one connection to its store")
    roll_call, reports = RollCall(store), Reports(store, 0, 1, lambda: {"sums": 3})

    def wait_in_the_store() -> None:
        with pytest.raises(torch.distributed.DistStoreError):
            store.wait(["never set"], timedelta(seconds=4))

    waiting = threading.Thread(target=wait_in_the_store)
    waiting.start()
    for step in range(100):  # some of them while the thread waits
        roll_call.here(Turn(step, 0), bucket_of(4))
    reports.publish()
    assert reports.read() == {0: {"sums": 3}}
    assert waiting.is_alive()
    waiting.join()
