# SPDX-License-Identifier: Apache-2.0
"""A program that ends in any state of a group, in any way, does not abort, and the other ranks end as well.

`make exit-hunt` (hunt.py) runs all states and endings many times, many at once.
"""

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from inagg.errors import InaggError, JobError
from inagg.options import Options
from inagg.process_group import ProcessGroup
from inagg_testbed.errors import WorkerFailedError
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from tests.hostlib.exit.cases import PROGRAM, RANKS, Case
from tests.waiting import wait_until


def end(testbed: Testbed, case: Case) -> list[int | None]:
    """Runs a case; returns the ranks' exit statuses, None for a rank that had to be ended."""
    command = [sys.executable, str(PROGRAM), *case.arguments]
    group = testbed.launch(command, name=case.name, environment=case.environment)
    noticed: dict[int, int | None] = {}
    with suppress(WorkerFailedError):
        group.follow(
            lambda *_: None,
            timeout_s=100,
            watch=testbed.services,
            on_poll=lambda: noticed.update({one.rank: one.process.poll() for one in group.workers}),
        )
    return [noticed[rank] for rank in range(len(group.workers))]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    with open_testbed(
        hosts=RANKS, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("exit")
    ) as testbed:
        yield testbed


@pytest.mark.netns
@pytest.mark.parametrize(
    "case",
    [
        Case("before_join", "sigint"),
        Case("joining", "sigterm-handled"),
        Case("probing", "sigint"),
        Case("waiting", "sigterm"),
        Case("summing", "fall"),
        Case("changing", "fall"),
        pytest.param(Case("changing", "sigterm-handled"), marks=pytest.mark.long),
        pytest.param(Case("summing", "exception", fallen_back=True), marks=pytest.mark.long),
        Case("joined", "fork", fallen_back=True),
        Case("failed", "exit", destroy=True),
        Case("summing", "fall", aggregation="server"),
        Case("joined", "exception", aggregation="shared"),
        pytest.param(Case("crossed", "fall", aggregation="server"), marks=pytest.mark.long),
    ],
    ids=lambda case: case.name,
)
def test_a_program_ends_in_order_in_any_state(network: Testbed, case: Case) -> None:
    statuses = end(network, case)
    assert case.wrong(statuses) == 0, statuses


@pytest.mark.netns
def test_the_hunt_counts_endings() -> None:
    command = [sys.executable, "-m", "tests.hostlib.exit.hunt", "2", "--only", "left-exit"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert "0 of 2 wrong" in found.stdout


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def use_nothing(_: ProcessGroup) -> None:
    pass


def use_gloo(group: ProcessGroup) -> None:
    group.allreduce([torch.ones(3)])
    group.broadcast([torch.ones(3)]).wait()


def fail(group: ProcessGroup) -> None:
    group.abort()
    with suppress(InaggError, RuntimeError):
        group.barrier().wait()


@pytest.mark.parametrize("use", [use_nothing, use_gloo, fail])
def test_a_destroyed_group_and_its_threads_are_gone_without_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[ProcessGroup], None]
) -> None:
    def join(*_: Any) -> None:
        raise JobError("no switch")

    monkeypatch.setattr("inagg.fallback.join", join)
    store = HashStore()
    options = Options(controller="http://127.0.0.1:9", fallback="inner")

    def run(rank: int) -> weakref.ref[ProcessGroup]:
        group = ProcessGroup(store, rank, RANKS, timedelta(seconds=20), options)
        use(group)
        group.shutdown()
        with suppress(JobError):
            group.barrier()
            raise AssertionError("a destroyed group still works")
        return weakref.ref(group)

    torch.ones(10).sum()
    gc.disable()
    try:
        before = threads()
        with ThreadPoolExecutor(RANKS) as ranks:
            groups = list(ranks.map(run, range(RANKS)))
        assert [group() for group in groups] == [None] * RANKS
        # A joined thread stays in /proc for a moment, also one of another test.
        wait_until(lambda: threads() <= before, "the threads to be gone")
    finally:
        gc.enable()
