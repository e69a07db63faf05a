# SPDX-License-Identifier: Apache-2.0
"""One rank's session, with a real transport, the reference switch on the loopback, and a fake controller."""

import os
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from inagg._core import EngineError, Route, Sockets, Transport
from inagg.errors import (
    CollectiveTimeoutError,
    ConfigurationError,
    ControllerRefusedError,
    InaggError,
    IntegrityError,
    JobError,
)
from inagg.membership.assembly import Assembly
from inagg.membership.join import _Agreed, _enter
from inagg.membership.joined import Joined
from inagg.membership.presence import Presence, TcpPresence
from inagg.membership.session import Session
from inagg.membership.way import confined_to
from inagg.options import Options, StagedOptions
from inagg.sums.reduction import Reduction
from inagg.sums.work import SwitchWork
from inagg_contract.documents import Heartbeat, JobStatus, Lost, RegisteredWorker
from inagg_simulator.virtual_network import JOB, make_aggregator, make_shape
from tests.conformance.loopback_switch import LoopbackSwitch
from tests.hostlib.membership.one_rank import HealthyController, all_reduce, status_of
from tests.waiting import wait_until

PATIENCE_S = 20.0


@pytest.fixture(params=[None, "host", "torch"], ids=["core", "copied", "staged"])
def options(request: pytest.FixtureRequest) -> Options:
    """Each test runs with tensors of the core and with tensors of a device, in two ways."""
    url = "http://127.0.0.1:9"
    return (
        Options(controller=url)
        if request.param is None
        else StagedOptions(controller=url, device_sums=request.param)
    )


@contextmanager
def session(workers: int = 1, on_failure: Callable[[], None] = lambda: None) -> Iterator[Session]:
    """The session of rank 0. With two workers no sum completes, because the other worker does not exist."""
    with LoopbackSwitch(make_aggregator(workers, slots=16, words=4)) as switch:
        transport = Transport(
            make_shape(workers, slots=16, words=4),
            rank=0,
            route=Route(aggregator=switch.address),
            sockets=Sockets(local=("127.0.0.1", 0)),
        )
        one = Session(
            Joined(HealthyController("http://127.0.0.1:9"), status_of(workers), 0, transport), on_failure
        )
        try:
            yield one
        finally:
            one.close()


def alone() -> Assembly:
    return Assembly(HashStore(), 0, 1, timedelta(seconds=PATIENCE_S))


def left_with(one: Session) -> str | None:
    assert isinstance(one._client, HealthyController)
    return one._client.left_with


def done_in_the_core(one: Session, count: int) -> None:
    done = f"{count} collectives"  # callbacks may have started more
    wait_until(lambda: one.stats()["collectives_completed"] >= count, done)


def descriptors() -> Counter[str]:
    """The number of this process's open descriptors, by kind."""
    found: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing is closed again
            found[str(descriptor.readlink()).partition("[")[0]] += 1
    return found


def test_a_closed_session_has_closed_its_descriptors_even_if_something_refers_to_it(options: Options) -> None:
    with session(workers=2) as one:
        one.sums.submit(torch.ones(10), options=options, call="")
        before = descriptors()
        one.fail("ended here")
        one.close()
        assert before - descriptors() == {"socket:": 1, "anon_inode:": 1}
        one.fail("ended again")
        with pytest.raises(InaggError):
            one.sums.submit(torch.ones(10), options=options, call="")


def test_results_of_another_collective_that_no_rank_has_called_were_damaged_or_forged(
    options: Options,
) -> None:
    with session() as one:
        call = "all_reduce(SUM, float32[1000])"
        one.sums.submit(torch.ones(1000), options=options, call=call).wait(PATIENCE_S)
        found = EngineError("the result is of another kind")
        found.code, found.chunk = "kind_mismatch", 77
        error = one.translate(found)
        assert isinstance(error, IntegrityError)
        assert (error.chunk, error.call) == (77, f"number 1, {call}")
        assert "has found no difference" in str(error)
        assert "damages packets, or a host forges them" in str(error)


def test_a_callback_may_start_another_all_reduce(options: Options) -> None:
    with session() as one:
        started: list[SwitchWork] = []
        first = all_reduce(one, torch.ones(1000), options)
        chained = first.get_future().then(lambda _: started.append(all_reduce(one, torch.ones(3), options)))
        done_in_the_core(one, 1)
        second = all_reduce(one, torch.ones(10), options)
        assert second.wait()
        chained.wait()
        assert started[0].wait()


def test_a_callback_may_wait_for_another_all_reduce(options: Options) -> None:
    with session() as one:
        depth = 5
        deepest = threading.Event()

        def sum_again(left: int) -> None:
            if left == 0:
                deepest.set()
                return
            all_reduce(one, torch.ones(10), options).get_future().then(lambda _: sum_again(left - 1)).wait()

        sum_again(depth)
        assert deepest.is_set()
        for _ in range(20):
            all_reduce(one, torch.ones(10), options).get_future().wait()
        wait_until(lambda: len(one.sums.threads()) <= 2, "threads end")


def test_a_callback_that_waits_receives_a_failure(options: Options) -> None:
    with session(workers=2) as one:
        works = [all_reduce(one, torch.ones(5), options) for _ in range(4)]
        futures = [work.get_future() for work in works]
        failed: list[str] = []

        def wait_for_the_last(_: object) -> None:
            try:
                futures[-1].wait()
            except RuntimeError as error:
                failed.append(str(error))

        chained = [future.then(wait_for_the_last) for future in futures[:-1]]
        one._transport.fail("rank 1 was lost")
        for future in chained:
            future.wait()
        assert len(failed) == 3


def slowly(note: Callable[[bool], None], _: object) -> None:
    threading.Event().wait(0.002)
    note(True)


def test_when_a_session_is_closed_every_callback_has_been_called(options: Options) -> None:
    for _ in range(20):
        called: queue.SimpleQueue[bool] = queue.SimpleQueue()
        with session(workers=2) as one:
            for _ in range(6):
                future = all_reduce(one, torch.ones(5), options).get_future()
                future.add_done_callback(partial(slowly, called.put))
            one.close()
            assert called.qsize() == 6


def test_a_rank_that_leaves_waits_a_moment_for_its_sums_which_others_may_need(options: Options) -> None:
    with session() as one:
        tensor = torch.ones(300_000)
        work = all_reduce(one, tensor, options)
        one.leave()
        assert left_with(one) is None
        assert work.wait()


def test_a_rank_that_leaves_during_sums_reports_it(monkeypatch: pytest.MonkeyPatch, options: Options) -> None:
    monkeypatch.setattr("inagg.membership.session._DRAIN_S", 0.05)
    with session(workers=2) as one:
        works = [all_reduce(one, torch.ones(size), options) for size in (5, 6)]
        one.leave()
        assert left_with(one) == "left while 2 of its sums were not done"
        for work in works:
            with pytest.raises(JobError):
                work.wait()


def test_a_rank_that_ends_because_another_has_left_leaves_without_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inagg.membership.heartbeat.LEAVING_S", 0.0)
    beat = Heartbeat(state="running", lost=(Lost(rank=1, reason="left"),), reason=None)
    monkeypatch.setattr(HealthyController, "heartbeat", lambda *_, **__: beat)
    with session(workers=2) as one:
        wait_until(lambda: one.failure is not None, "the failure")
        one.leave()
        assert left_with(one) is None


def test_a_forked_child_is_not_a_member(options: Options) -> None:
    with session() as one:
        child = os.fork()
        if child == 0:
            try:
                one.leave()
                with pytest.raises(JobError, match="forked"):
                    all_reduce(one, torch.ones(3), options)
                os._exit(0 if isinstance(one.failure, JobError) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert all_reduce(one, torch.ones(3), options).wait()


def test_a_rank_that_leaves_because_of_an_error_reports_it(options: Options) -> None:
    with session(workers=2) as one:
        all_reduce(one, torch.ones(5), options)
        one.leave("its program ended with ValueError: no such file")
        assert left_with(one) == "its program ended with ValueError: no such file"


def test_a_sum_that_completed_before_a_failure_stays_complete(options: Options) -> None:
    strided = torch.ones(10, 2)[:, 0]
    with session() as one:
        work = all_reduce(one, strided, options)
        done_in_the_core(one, 1)
        one.close()
        assert work.wait()
        assert work.get_future().wait()[0] is strided
        assert strided.tolist() == [1.0] * 10
        with pytest.raises(InaggError):
            all_reduce(one, torch.ones(1), options)


def test_a_future_asked_for_after_a_failure_is_completed_with_it(options: Options) -> None:
    with session(workers=2) as one:
        waited, unwaited = all_reduce(one, torch.ones(5), options), all_reduce(one, torch.ones(6), options)
        future = waited.get_future()
        one._transport.fail("rank 1 was lost")
        with pytest.raises(RuntimeError, match="rank 1 was lost"):
            future.wait()
        with pytest.raises(RuntimeError, match="rank 1 was lost"):
            unwaited.get_future().wait()
        with pytest.raises(JobError, match="rank 1 was lost"):
            unwaited.wait()


def test_the_queue_forgets_completed_sums_that_nobody_waits_for(options: Options) -> None:
    with session() as one:
        for _ in range(50):
            all_reduce(one, torch.ones(100), options)
        done_in_the_core(one, 50)
        assert all_reduce(one, torch.ones(1), options).wait()
        assert len(one.sums) == 0


def test_a_new_sum_asks_the_core_about_one_earlier_sum_only(
    monkeypatch: pytest.MonkeyPatch, options: Options
) -> None:
    with session(workers=2) as one:
        asked: list[int] = []
        wait = one.sums.wait

        def counted(reduction: Reduction, timeout_s: float | None) -> bool:
            asked.append(reduction.ticket)
            return wait(reduction, timeout_s)

        monkeypatch.setattr(one.sums, "wait", counted)
        works = [all_reduce(one, torch.ones(3), options) for _ in range(100)]
        assert len(asked) < len(works)
        assert len(set(asked)) == 1


def test_the_same_memory_is_summed_once_after_the_other(options: Options) -> None:
    with session() as one:
        tensor = torch.ones(100_000)
        works = [all_reduce(one, tensor, options) for _ in range(3)]
        assert all(work.wait() for work in works)
        assert tensor.tolist() == [1.0] * 100_000


def test_the_packet_thread_stays_on_the_processors_it_is_given() -> None:
    own = os.sched_getaffinity(0)
    last = max(own)
    with confined_to(str(last)), session():
        packet_threads = [
            int(task.name)
            for task in Path("/proc/self/task").iterdir()
            if (task / "comm").read_text() == "inagg\n"
        ]
        assert [os.sched_getaffinity(thread) for thread in packet_threads] == [{last}]
    assert os.sched_getaffinity(0) == own


def test_missing_processors_are_an_error_that_names_the_ones_available() -> None:
    own = os.sched_getaffinity(0)
    with pytest.raises(ConfigurationError, match=rf"8191.*{max(own)}"), confined_to("8191"):
        pass
    assert os.sched_getaffinity(0) == own


def test_a_process_that_is_refused_its_rank_does_not_leave_the_job() -> None:
    class Refusing(HealthyController):
        left_with: str | None = "nothing"

        def register(self, *_: object, **__: object) -> RegisteredWorker:
            raise ControllerRefusedError(
                url="", request="", status=409, title="", detail="rank 0 is already taken"
            )

    client = Refusing("http://127.0.0.1:9")
    with pytest.raises(ControllerRefusedError, match="already taken"):
        _enter(client, _Agreed(JOB, "leased"), "127.0.0.1", alone(), Options(), lambda: None)
    assert client.left_with == "nothing"


def test_if_the_other_ranks_do_not_join_a_rank_leaves_with_the_reason() -> None:
    reasons: list[str | None] = []

    class Waiting(HealthyController):
        def register(self, *_: object, **__: object) -> RegisteredWorker:
            return RegisteredWorker(**dict(status_of(2)), rank=0, member=0, switch="s1", port=1)

        def attend(self, *_: object) -> Presence:
            presence: Presence = mock.create_autospec(TcpPresence, instance=True)
            return presence

        def wait_running(self, job: int, **_: object) -> JobStatus:
            raise JobError("ranks [1] have not registered", job=job)

        def leave(
            self, job: int, rank: int, *, error: str | None = None, timeout_s: float | None = None
        ) -> JobStatus:
            assert not self._closed
            reasons.append(error)
            return status_of(2)

    client = Waiting("http://127.0.0.1:9")
    with pytest.raises(JobError, match="have not registered"):
        _enter(client, _Agreed(JOB, "leased"), "127.0.0.1", alone(), Options(), lambda: None)
    assert "have not registered" in (reasons[0] or "")
    assert client._closed


def test_a_sum_that_takes_longer_than_its_timeout_ends_the_job_for_all_ranks(options: Options) -> None:
    failed = threading.Event()
    with session(workers=2, on_failure=failed.set) as one:
        other = all_reduce(one, torch.ones(6), options)
        reduction = one.sums.submit(torch.ones(5), options=options, call="", timeout_s=0.05)
        assert not reduction.wait(0.0)
        assert reduction.wait(None)
        assert isinstance(reduction.error, CollectiveTimeoutError)
        assert re.search(r"5 elements were not summed within the group's 0\.05 s", str(reduction.error))
        with pytest.raises(JobError):
            other.wait()
        assert left_with(one) == "5 elements were not summed within 0.05 s"
        assert failed.is_set()


def test_a_future_fails_at_its_timeout_even_if_nobody_waits_for_its_sum(options: Options) -> None:
    with session(workers=2) as one:
        reduction = one.sums.submit(torch.ones(5), options=options, call="", timeout_s=0.05)
        future = SwitchWork([], [reduction]).get_future()
        with pytest.raises(RuntimeError, match="5 elements were not summed"):
            future.wait()
