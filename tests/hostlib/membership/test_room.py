# SPDX-License-Identifier: Apache-2.0
"""A job for which there is no room waits for other jobs to end, if `wait_s` says so, on all ranks alike."""

import json
import logging
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from inagg.errors import (
    ConfigurationError,
    ControllerRefusedError,
    ControllerUnreachableError,
    InaggError,
    JobError,
)
from inagg.membership import room
from inagg.membership.assembly import Assembly
from inagg.membership.control import ControlClient
from inagg.membership.join import _agree_on_job, _tell_address
from inagg.membership.room import create_job, wait_for_room
from inagg.options import Options
from inagg_contract.documents import Health, JobStatus
from inagg_testbed.errors import WorkerFailedError
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.workers import WorkerGroup
from tests.hostlib.membership.one_rank import health_of, status_of
from tests.waiting import wait_until

URL = "http://127.0.0.1:9"
WORKER = Path(__file__).with_name("room_worker.py")
LIMIT_S = 120.0


def refused(status: int = 503, kind: str = "unavailable") -> ControllerRefusedError:
    return ControllerRefusedError(
        url=URL,
        request="POST /jobs",
        status=status,
        title="Unavailable",
        detail="the pool is full",
        kind=kind,
    )


def hurried(retry_after_s: float | None) -> ControllerRefusedError:
    """The error of a tenant that asks too often."""
    error = refused(429, "too-many-requests")
    error.retry_after_s = retry_after_s
    return error


class BusyController(ControlClient):
    """Raises these errors in turn, then creates the job. asked: what is to sum, in each request."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__(URL)
        self.errors = list(errors)
        self.asked: list[str] = []

    def health(self) -> Health:
        return health_of("10.0.0.253")

    def create_job(self, workers: int, *_: Any, aggregation: Any = "leased", **__: Any) -> JobStatus:
        self.asked.append(aggregation)
        if self.errors:
            raise self.errors.pop(0)
        status = status_of(workers).model_copy(update={"aggregation": aggregation})
        self.learn_secret(status.id, "secret")
        return status


class FullController(BusyController):
    """Has no room for jobs on a switch."""

    def create_job(self, workers: int, *_: Any, aggregation: Any = "leased", **__: Any) -> JobStatus:
        self.errors = [] if aggregation == "server" else [refused(kind="full")]
        return super().create_job(workers, aggregation=aggregation)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_PAUSE_S", 0.01)


def nobody_fails() -> None:
    pass


def test_a_job_waits_until_there_is_room_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    controller = BusyController(*[refused()] * 3)
    with caplog.at_level(logging.WARNING):
        assert wait_for_room(lambda: controller.create_job(2), 60.0, nobody_fails).workers == 2
    assert caplog.messages == ["inagg: waiting up to 60 s for room for the job: the pool is full"]


def test_a_job_that_may_not_wait_asks_once(caplog: pytest.LogCaptureFixture) -> None:
    controller = BusyController(refused())
    with pytest.raises(
        ControllerRefusedError,
        match=r"Unavailable \(503\): the pool is full \(wait_s lets a job wait for room\)$",
    ):
        wait_for_room(lambda: controller.create_job(2), 0.0, nobody_fails)
    assert caplog.messages == []


HOSTS = ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize("retry_after_s", [0.03, None])
def test_a_tenant_that_asks_too_often_waits_as_long_as_the_controller_says(
    retry_after_s: float | None,
) -> None:
    controller = BusyController(*[hurried(retry_after_s)] * 2)
    checks: list[float] = []
    begun = time.monotonic()
    job = create_job(controller, Options(), HOSTS, lambda: checks.append(time.monotonic()))
    assert job.workers == 2
    assert time.monotonic() - begun >= 2 * (retry_after_s or room._PAUSE_S)
    assert len(checks) >= 2


def test_a_tenant_waits_for_its_turn_and_for_room() -> None:
    controller = BusyController(hurried(0.01), refused(), hurried(0.01), refused())
    assert create_job(controller, Options(wait_s=60), HOSTS, nobody_fails).workers == 2


def test_a_tenant_waits_for_its_turn_on_servers_too() -> None:
    controller = BusyController(refused(kind="full"), hurried(0.01))
    assert create_job(controller, Options(), HOSTS, nobody_fails).aggregation == "server"
    assert controller.asked == ["leased", "server", "server"]


def test_a_tenant_does_not_begin_a_wait_that_would_take_too_long() -> None:
    with pytest.raises(ControllerRefusedError) as found:
        create_job(BusyController(hurried(61.0)), Options(setup_timeout_s=60), HOSTS, nobody_fails)
    assert (found.value.status, found.value.detail) == (429, "the pool is full")


def test_a_wait_for_a_tenants_turn_ends_when_a_rank_fails() -> None:
    def rank_1_fails() -> None:
        raise JobError("rank 1 could not join")

    with pytest.raises(JobError, match="rank 1 could not join"):
        create_job(BusyController(hurried(30.0)), Options(), HOSTS, rank_1_fails)


def test_when_the_time_is_over_the_error_says_what_was_missing_and_for_how_long() -> None:
    controller = BusyController(*[refused()] * 1000)
    with pytest.raises(ControllerRefusedError) as found:
        wait_for_room(lambda: controller.create_job(2), 0.05, nobody_fails)
    assert str(found.value) == (
        f"the controller at {URL} refused POST /jobs: Unavailable (503): the pool is full (waited 0.05 s for room, as "
        "wait_s says)"
    )
    assert (found.value.status, found.value.url, found.value.request) == (503, URL, "POST /jobs")
    assert len(controller.errors) < 999  # it asked more than once


@pytest.mark.parametrize(
    "error",
    [refused(422), refused(501), ControllerUnreachableError(url=URL, request="POST /jobs", cause="no route")],
)
def test_other_errors_end_the_wait(error: InaggError) -> None:
    controller = BusyController(refused(), error)
    with pytest.raises(type(error)) as found:
        wait_for_room(lambda: controller.create_job(2), 60.0, nobody_fails)
    assert found.value is error


def test_a_rank_that_fails_ends_the_wait() -> None:
    def check() -> None:
        raise JobError("rank 1 could not make the group")

    controller = BusyController(*[refused()] * 1000)
    with pytest.raises(JobError, match="rank 1 could not"):
        wait_for_room(lambda: controller.create_job(2), 60.0, check)
    assert len(controller.errors) == 999


def agree(controller: ControlClient, *waits: float, fallbacks: Sequence[str] = ()) -> list[Any]:
    """What `_agree_on_job` returns or raises at each rank. waits: the rank's wait_s. fallbacks: its fallback."""
    store = HashStore()

    def run(rank: int) -> Any:
        ranks = Assembly(store, rank, len(waits), timedelta(seconds=20))
        given = {"fallback": fallbacks[rank]} if fallbacks else {}
        options = Options(controller=URL, address=f"10.0.0.{1 + rank}", wait_s=waits[rank], **given)
        client = controller if rank == 0 else ControlClient(URL)
        try:
            _tell_address(client, ranks, options, timedelta(seconds=20))
            # The other ranks would not wait long enough for rank 0 without their own wait_s.
            return _agree_on_job(
                client, ranks, options, timedelta(seconds=0.05 if rank and waits[rank] > 1 else 20)
            )
        except InaggError as error:
            return error

    with ThreadPoolExecutor(len(waits)) as threads:
        return list(threads.map(run, range(len(waits))))


def test_the_other_ranks_wait_with_rank_0() -> None:
    found = agree(BusyController(*[refused()] * 20), 30.0, 30.0, 30.0)
    assert found == [(status_of(3).id, "leased")] * 3


def test_the_other_ranks_learn_why_rank_0_did_not_get_the_job() -> None:
    first, second = agree(BusyController(*[refused()] * 1000), 0.1, 0.1)
    assert isinstance(first, ControllerRefusedError)
    assert isinstance(second, JobError)
    assert f"rank 0 could not create the job: {first}" in str(second)


def test_servers_sum_if_the_switch_is_full_and_the_first_time_this_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_levels", iter([logging.WARNING, logging.INFO]))
    why = "the switch has no room: the pool is full"
    for said in ([f"inagg: job 7: servers sum for this group, with the same bits, because {why}"], []):
        controller = FullController()
        with caplog.at_level(logging.WARNING):
            (number, way), other = agree(controller, 0.0, 0.0)
        assert (way, other) == ("server", (number, "server"))
        assert controller.asked == ["leased", "server"]
        assert [message.partition(" (wait_s")[0] for message in caplog.messages] == said
        caplog.clear()


def test_a_job_waits_for_slots_before_servers_sum_for_it() -> None:
    controller = BusyController(*[refused(kind="full")] * 5)
    assert agree(controller, 30.0, 30.0) == [(status_of(2).id, "leased")] * 2
    controller = FullController()
    assert [way for _, way in agree(controller, 0.05, 0.05)] == ["server"] * 2
    assert controller.asked.count("leased") > 1


@pytest.mark.parametrize(
    ("error", "fallback"),
    [(refused(), "server"), (refused(kind="full"), "error"), (refused(kind="full"), "inner")],
)
def test_servers_do_not_sum_for_another_reason_or_if_the_user_does_not_want_it(
    error: InaggError, fallback: str
) -> None:
    controller = BusyController(error)
    first, second = agree(controller, 0.0, 0.0, fallbacks=[fallback] * 2)
    assert isinstance(first, ControllerRefusedError)
    assert isinstance(second, JobError)
    assert controller.asked == ["leased"]


def test_the_reasons_of_both_ways_are_in_the_error() -> None:
    controller = BusyController(refused(kind="full"), refused())
    first, _ = agree(controller, 0.0, 0.0)
    assert isinstance(first, ControllerRefusedError)
    assert "the pool is full (wait_s lets a job wait for room); on servers: the pool is full" in str(first)


def test_a_rank_with_another_fallback_is_told() -> None:
    first, second = agree(FullController(), 0.0, 0.0, fallbacks=["server", "error"])
    assert first[1] == "server"
    assert isinstance(second, ConfigurationError)
    assert "fallback must be the same at all ranks: it is error at rank 1, server at rank 0" in str(second)


def test_a_job_with_few_slots_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for granted, said in (
        (8, ["inagg: job 1 got 8 of the 256 slots that it asked for; so few make its sums slow"]),
        (16, []),
    ):
        few = status_of(2).model_copy(update={"id": 1, "slots": granted})
        monkeypatch.setattr("tests.hostlib.membership.test_room.status_of", lambda _, few=few: few)
        with caplog.at_level(logging.WARNING):
            assert agree(BusyController(), 0.0, 0.0) == [(1, "leased")] * 2
        assert caplog.messages == said
        caplog.clear()


def test_ranks_that_would_wait_for_different_times_are_told() -> None:
    controller = BusyController()
    first, second, third = agree(controller, 30.0, 30.0, 60.0)
    assert isinstance(first, ConfigurationError)
    assert str(first) == "wait_s must be the same at all ranks: it is 60 at rank 2, 30 at rank 0"
    for other in (second, third):
        assert isinstance(other, JobError)
        assert str(first) in str(other)


# --- on a network, with slots for one job


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory, forked_processes: None) -> Iterator[Testbed]:
    with open_testbed(
        hosts=4, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("room"), pool=2
    ) as testbed:
        yield testbed


class Holder:
    """A job that has all slots until it is ended."""

    def __init__(self, network: Testbed, ending: Path) -> None:
        self._network, self._ending = network, ending
        self._group = launch(network, "holder", (1, 2), ending)

    def end(self) -> None:
        self._ending.touch()
        self._group.follow(lambda *_: None, timeout_s=LIMIT_S, watch=self._network.services)

    def wait(self) -> None:
        for worker in self._group.workers:
            worker.process.wait_for_line("summed", timeout_s=LIMIT_S)


@pytest.fixture(scope="module")
def holder(network: Testbed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holder]:
    found = Holder(network, tmp_path_factory.mktemp("holder") / "end")
    found.wait()
    yield found
    found.end()


def launch(network: Testbed, name: str, hosts: Sequence[int], *ending: Path, **options: str) -> WorkerGroup:
    return network.launch(
        [sys.executable, str(WORKER), *map(str, ending)],
        name=name,
        hosts=hosts,
        slots=2,
        environment={f"INAGG_{option.upper()}": value for option, value in options.items()},
    )


def wanting(network: Testbed, name: str, **options: str) -> WorkerGroup:
    """A job that ends at once when it has summed."""
    return launch(network, name, (3, 4), **options)


def end(group: WorkerGroup, network: Testbed) -> list[dict[str, Any]]:
    """Wait for the ranks to end; returns what each has printed."""
    with suppress(WorkerFailedError):
        group.follow(lambda *_: None, timeout_s=LIMIT_S, watch=network.services)
    lines = [worker.process.log_path.read_text().splitlines() for worker in group.workers]
    return [json.loads(next(line for line in each if line[:1] == "{")) for each in lines]


def times_logged(group: WorkerGroup, text: str) -> list[int]:
    """In the log of each rank. A forked rank makes its log itself."""
    logs = [worker.process.log_path for worker in group.workers]
    return [log.read_text().count(text) if log.exists() else 0 for log in logs]


@pytest.mark.netns
@pytest.mark.usefixtures("holder")
def test_all_ranks_raise_if_there_is_no_room_in_time(network: Testbed) -> None:
    first, second = end(wanting(network, "raises", wait_s="0.5", fallback="error"), network)
    assert (first["error"], second["error"]) == ("ControllerRefusedError", "JobError")
    assert "the slot pool of switch s1 is full: 0 of 2 slots are free" in first["message"]
    assert "waited 0.5 s for room, as wait_s says" in first["message"]
    assert first["message"] in second["message"]


@pytest.mark.netns
@pytest.mark.usefixtures("holder")
def test_servers_sum_if_there_is_no_room(network: Testbed) -> None:
    group = wanting(network, "served")
    assert [each["path"] for each in end(group, network)] == ["server", "server"]
    assert times_logged(group, "servers sum for this group, with the same bits") == [1, 0]


@pytest.mark.netns
@pytest.mark.usefixtures("holder")
def test_gloo_sums_if_there_is_no_room_in_time_and_the_user_allows_it(network: Testbed) -> None:
    found = end(wanting(network, "falls-back", wait_s="0.5", fallback="inner"), network)
    assert [each["path"] for each in found] == ["inner", "inner"]


@pytest.mark.netns
@pytest.mark.usefixtures("holder")
@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_at_a_rank_ends_the_wait_of_all(network: Testbed, rank: int) -> None:
    group = wanting(network, f"interrupted-{rank}", wait_s="100000")
    wait_until(lambda: times_logged(group, "waiting up to 100000 s")[0], "it waits", LIMIT_S)
    group.workers[rank].process.signal(signal.SIGINT)
    found = end(group, network)
    assert found[rank]["error"] == "KeyboardInterrupt"
    assert found[1 - rank]["error"] == "JobError"
    failed = rf"rank {rank} \(h{rank + 3}, 10\.0\.0\.{rank + 3}\) could not make the group: KeyboardInterrupt"
    assert re.search(failed, found[1 - rank]["message"])


@pytest.mark.netns
def test_a_job_that_ends_lets_the_next_one_in(network: Testbed, holder: Holder) -> None:
    group = wanting(network, "waits", wait_s="1000")
    wait_until(lambda: times_logged(group, "waiting up to 1000 s")[0], "it waits", LIMIT_S)
    holder.end()
    assert [each["path"] for each in end(group, network)] == ["switch", "switch"]
    assert times_logged(group, "waiting up to") == [1, 0]
