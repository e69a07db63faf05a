# SPDX-License-Identifier: Apache-2.0
"""If one rank fails while a group is made, all ranks learn the reason within seconds."""

import json
import re
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from inagg.errors import ConfigurationError, InaggError, JobError, PeerLostError
from inagg.inner.gloo import make_gloo
from inagg.membership.assembly import Assembly
from inagg.membership.join import _address_of, _addresses, join
from inagg.options import Options
from inagg_testbed.errors import WorkerFailedError
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from tests.waiting import BUSY_S

WORKER = Path(__file__).with_name("joining_worker.py")
LIMIT = timedelta(seconds=20)
ENOUGH_S = 10.0 + BUSY_S
HERE = "127.0.0.1"


@pytest.mark.parametrize("kind", [OSError, ConfigurationError, SystemExit, KeyboardInterrupt])
def test_an_exception_at_one_rank_reaches_those_that_wait(kind: type[BaseException]) -> None:
    store = HashStore()
    ours, theirs = (Assembly(store, rank, 2, LIMIT) for rank in range(2))
    broken: list[str] = []
    theirs.break_off = lambda: broken.append("off")
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(ours.exchange, "words", "here")
        with pytest.raises(kind), theirs:
            raise kind("too many open files")
    with pytest.raises(JobError, match=r"rank 1 could not make the group: .*too many open files"):
        waiting.result(timeout=5)
    assert broken == ["off"]


def test_the_first_failure_is_the_one_that_is_reported() -> None:
    store = HashStore()
    for rank, problem in ((2, "first"), (1, "second")):
        with pytest.raises(OSError, match=problem), Assembly(store, rank, 3, LIMIT):
            raise OSError(problem)
    with pytest.raises(JobError, match="rank 2 could not make the group: OSError: first"):
        Assembly(store, 0, 3, LIMIT).check()


def test_a_rank_that_ends_after_it_has_sent_its_words_is_not_lost() -> None:
    store = HashStore()
    ours, theirs = (Assembly(store, rank, 2, LIMIT) for rank in range(2))
    with ThreadPoolExecutor(1) as other:
        told = other.submit(theirs.exchange, "words", "there")
        ours.store.set("words/0", "0")
        told.result(timeout=5)
    with ours:
        with theirs:
            ours.watch(HERE)
            theirs.watch(HERE)
            ours.check()  # sees it
        assert ours.exchange("words", "here") == ["here", "there"]


def test_ranks_that_wait_learn_from_rank_0_which_rank_has_ended() -> None:
    store = HashStore()
    first, second, third = ranks = [Assembly(store, rank, 4, LIMIT) for rank in range(3)]  # rank 3 is late
    with second, ThreadPoolExecutor(1) as other:
        with third:
            for rank in ranks:
                rank.watch(HERE)
                rank.check()
        waiting = other.submit(second.exchange, "words", "here")
        with pytest.raises(PeerLostError, match="lost rank 2"), first:
            first.exchange("words", "here")
        with pytest.raises(PeerLostError, match="lost rank 2") as found:
            waiting.result(timeout=5)
    assert found.value.lost_ranks == (2,)


class Refused:
    """A gloo group whose constructor raises after a while, because it cannot connect."""

    _Options = dist.ProcessGroupGloo._Options  # type: ignore[attr-defined]  # torch's stub lacks it
    after_s: ClassVar[dict[int, float]] = {}  # by rank; ranks that are not here can connect

    def __init__(self, _store: object, rank: int, *_: object) -> None:
        if rank in self.after_s:
            time.sleep(self.after_s[rank])
            raise RuntimeError(f"connection refused, says rank {rank}")

    def _set_default_timeout(self, _timeout: timedelta) -> None:
        pass


@pytest.mark.parametrize(
    ("after_s", "ended", "told"),
    [
        ({0: 2, 2: 0}, True, "lost rank 1"),
        ({2: 0}, True, "lost rank 1"),
        ({0: 2, 2: 0}, False, "says rank 2"),
        ({0: 0, 2: 0.2}, False, "says rank 0"),
        ({2: 0}, False, "says rank 2"),
    ],
)
def test_if_gloo_cannot_connect_the_cause_is_reported(
    monkeypatch: pytest.MonkeyPatch, after_s: dict[int, float], ended: bool, told: str
) -> None:
    monkeypatch.setattr(dist, "ProcessGroupGloo", Refused)
    monkeypatch.setattr(Refused, "after_s", after_s)
    store = HashStore()
    first, second, third = ranks = [Assembly(store, rank, 3, LIMIT) for rank in range(3)]
    for rank in ranks:
        rank.watch(HERE)
    first.check()

    def connect(ranks: Assembly) -> None:
        with ranks:
            make_gloo(ranks, [])
            ranks.exchange("what comes next", None)

    with second, ThreadPoolExecutor(2) as others:
        if ended:
            second.__exit__(None, None, None)
        for made in [others.submit(connect, rank) for rank in (third, first)]:
            with pytest.raises((RuntimeError, InaggError), match=told):
                made.result(timeout=4)


def test_a_rank_that_ended_before_another_began_to_watch_it_is_lost() -> None:
    store = HashStore()
    with Assembly(store, 0, 2, LIMIT) as first:
        first.watch(HERE)
    second = Assembly(store, 1, 2, LIMIT)
    second.watch(HERE)
    with pytest.raises(PeerLostError, match="lost rank 0"), second:
        second.exchange("words", "here")


@pytest.mark.parametrize("local", [0, 1, 2])
def test_a_rank_at_127_0_0_1_beside_ranks_of_other_hosts_is_named(local: int) -> None:
    store = HashStore()
    addresses = [HERE if rank == local else f"10.0.0.{rank + 1}" for rank in range(3)]

    def run(rank: int) -> None:
        options = Options(controller="http://127.0.0.1:9", address=addresses[rank], aggregation="server")
        with Assembly(store, rank, 3, LIMIT) as ranks:
            join(ranks, options)

    with ThreadPoolExecutor(3) as threads:
        errors = [made.exception(timeout=20) for made in [threads.submit(run, rank) for rank in range(3)]]
    assert [type(error) for error in errors] == [ConfigurationError, JobError, JobError]
    for error in errors:
        assert f"the address of rank {local} is 127.0.0.1, which no other host can reach" in str(error)


@pytest.mark.parametrize("addresses", [[HERE, "127.0.0.2"], ["10.0.0.1", "10.0.0.2"]])
def test_ranks_of_one_host_may_be_at_127_0_0_1(addresses: list[str]) -> None:
    store = HashStore()
    ranks = [Assembly(store, rank, 2, LIMIT) for rank in range(2)]
    for one, address in zip(ranks, addresses, strict=True):
        one.publish(_address_of(one.rank), {"ip": address, "wait_s": 0.0})
    assert _addresses(ranks[0], LIMIT) == addresses


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    with open_testbed(
        hosts=3, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("joining")
    ) as testbed:
        yield testbed


FORKED = pytest.mark.usefixtures("forked_processes")
LOST = "lost rank 1 ("


@pytest.mark.netns
@FORKED
@pytest.mark.parametrize(
    ("how", "rank", "message"),
    [
        ("out of descriptors", 1, "rank 1 (h2, 10.0.0.2) could not"),
        (
            "interrupted",
            1,
            "rank 1 (h2, 10.0.0.2) could not make the group: KeyboardInterrupt: as programs do",
        ),
        ("exits", 1, "rank 1 (h2, 10.0.0.2) could not make the group: SystemExit: as programs do"),
        *(
            # The store ends with rank 0; that may be all that others see.
            pytest.param(how, rank, "rank 0" if rank == 0 else LOST, marks=marks)
            for how, marks in (
                ("killed before it has met the others", pytest.mark.long),
                ("killed before gloo connects", pytest.mark.long),
                ("killed as gloo connects", ()),
                ("killed before it has joined", pytest.mark.long),
            )
            for rank in (0, 1)
        ),
    ],
)
def test_ranks_learn_of_one_that_ends_before_it_has_joined(
    network: Testbed, how: str, rank: int, message: str
) -> None:
    name = f"{how.replace(' ', '-')}-{rank}"
    group = network.launch([sys.executable, str(WORKER), how, str(rank)], name=name)
    with pytest.raises(WorkerFailedError):
        group.follow(lambda *_: None, timeout_s=100, watch=network.services)
    logs = [worker.process.log_path.read_text() for worker in group.workers]
    said: list[list[dict[str, Any]]] = [
        [json.loads(line) for line in log.splitlines() if line[:1] == "{"] for log in logs
    ]
    failed_at = said[rank][0]["at"]
    for other in {0, 1, 2} - {rank}:
        (noticed,) = said[other]
        assert message in noticed["message"]
        assert noticed["at"] - failed_at < ENOUGH_S
        if how.startswith("killed"):
            assert noticed["errors"] == 1
            assert logs[other].count("Exception raised from") <= 1  # in torch's client of the store


@pytest.mark.netns
@FORKED
@pytest.mark.parametrize(
    ("how", "rank"),
    [
        ("stopped before it has met the others", 1),
        ("stopped as gloo connects", 0),
        ("stopped before it has joined", 1),
        ("stopped before packets pass", 0),
        *(
            pytest.param(how, rank, marks=pytest.mark.long)
            for how, rank in (
                ("stopped before gloo connects", 0),
                ("stopped before gloo connects", 1),
                ("stopped as gloo connects", 1),
                ("stopped before it has joined", 0),
                ("stopped before it knows its job", 0),
                ("stopped before it knows its job", 1),
                ("stopped before packets pass", 1),
            )
        ),
    ],
)
def test_ranks_name_one_that_is_stopped_before_it_has_joined(network: Testbed, how: str, rank: int) -> None:
    name = f"{how.replace(' ', '-')}-{rank}"
    group = network.launch([sys.executable, str(WORKER), how, str(rank)], name=name)
    group.failure_grace_s = 3
    with pytest.raises(WorkerFailedError) as caught:
        group.follow(lambda *_: None, timeout_s=60, watch=network.services)
    said = [json.loads(worker.process.log_path.read_text().splitlines()[-1]) for worker in group.workers]
    assert said[rank]["failed"] == how
    for other in {0, 1, 2} - {rank}:
        assert f"lost rank {rank} (" in said[other]["message"]
        assert (
            f"10.0.0.{rank + 1}): it has not made the group: its process is stopped" in said[other]["message"]
        )
        assert said[other]["at"] - said[rank]["at"] < ENOUGH_S
    assert "was ended" in caught.value.failures[rank]


@pytest.mark.netns
@FORKED
@pytest.mark.long
def test_a_rank_that_is_busy_with_the_gil_held_while_it_joins_is_not_given_up(network: Testbed) -> None:
    group = network.launch([sys.executable, str(WORKER), "busy before it has joined", "1"], name="busy")
    group.follow(lambda *_: None, timeout_s=100, watch=network.services)


def test_a_stopped_rank_that_goes_on_learns_that_it_was_given_up() -> None:
    store = HashStore()
    first, second = (Assembly(store, rank, 2, LIMIT) for rank in range(2))
    with pytest.raises(PeerLostError), first:
        raise PeerLostError([1], reason="its process is stopped", rank=0)
    with pytest.raises(JobError, match="rank 0 has given this rank up: its process is stopped"):
        second.check()


@pytest.mark.netns
@FORKED
@pytest.mark.parametrize(
    "how",
    [
        "switch ends before gloo connects",
        "switch ends before all have joined",
        "switch ends before packets pass",
    ],
)
def test_ranks_learn_that_the_switch_has_ended_before_they_have_joined(tmp_path: Path, how: str) -> None:
    """The ranks reach the store and the controller only through the switch, too."""
    flag = tmp_path / "ended"
    with open_testbed(hosts=3, link=LinkSpec.parse("unshaped"), results_root=tmp_path) as testbed:
        (switch,) = (process for process in testbed.services if process.name == "switch")

        group = testbed.launch(
            [sys.executable, str(WORKER), how, "1"],
            name="switch-ends",
            environment={"SWITCH_HAS_ENDED": str(flag)},
        )

        def end_switch() -> None:
            if not flag.exists() and "failed" in group.workers[1].process.log_path.read_text():
                switch.signal(signal.SIGKILL)
                flag.touch()

        with pytest.raises(WorkerFailedError):
            group.follow(lambda *_: None, timeout_s=100, on_poll=end_switch)
    said = [
        [json.loads(line) for line in worker.process.log_path.read_text().splitlines() if line[:1] == "{"]
        for worker in group.workers
    ]
    ended_at = said[1].pop(0)["at"]
    for (noticed,) in said:
        assert noticed["at"] - ended_at < ENOUGH_S, noticed
        assert re.search(r"no answer from 10\.0\.0\.\d|torch's store does not answer", noticed["message"])
        assert noticed["errors"] == 1
