# SPDX-License-Identifier: Apache-2.0
"""A program may end in any state of a group, in any way: it never aborts, and the other ranks end as well.

`make exit-hunt` (exit_hunt.py) does all of these many times on a busy machine.
"""

import gc
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
import torch.distributed as dist
from test_session import until

from inagg.errors import InaggError, JobError
from inagg.options import Options
from inagg.process_group import ProcessGroup
from inagg_testbed.errors import WorkerFailedError
from inagg_testbed.links import LinkSpec
from inagg_testbed.testbed import Testbed, open_testbed

WORKER = Path(__file__).with_name("exit_states.py")
RANKS = 2
BUSY = ("before_join", "joining", "probing", "waiting")  # rank 0 waits, and can be ended by a signal alone
FREE = ("joined", "summing", "failed", "left")
# How a program ends, and the status of rank 0. A signal that Python has no handler for kills it at once.
ENDINGS = {"fall": 0, "exception": 1, "exit": 3, "fork": 3}
SIGNALS = {"sigint": -2, "sigterm": -15, "sigterm-handled": 3}
NOWHERE = "http://10.0.0.254:9"
FALLEN_BACK = {"INAGG_CONTROLLER": NOWHERE, "INAGG_FALLBACK": "inner"}


def cases() -> Iterator[tuple[str, str, bool, bool]]:
    """State, ending, whether the group is destroyed before, whether it has fallen back."""
    for ending in SIGNALS:
        for state in BUSY:
            yield state, ending, False, False
        yield "waiting", ending, False, True
    for ending in (*ENDINGS, *SIGNALS):
        for state in FREE:
            for destroy in {False, state != "left"}:
                for fallen_back in (False, True):
                    yield state, ending, destroy, fallen_back


def end(testbed: Testbed, name: str, state: str, ending: str, destroy: bool, fallen_back: bool) -> list[Any]:
    """The ranks' exit statuses; None for one that had to be ended."""
    command = [sys.executable, str(WORKER), state, ending, *["destroy"] * destroy]
    environment = FALLEN_BACK if fallen_back else {}
    group = testbed.launch(command, name=name, environment=environment)
    noticed: dict[int, int | None] = {}
    with suppress(WorkerFailedError):
        group.follow(
            lambda *_: None,
            timeout_s=100,
            watch=testbed.services,
            on_poll=lambda: noticed.update({one.rank: one.process.poll() for one in group.workers}),
        )
    return [noticed[rank] for rank in range(len(group.workers))]


def as_expected(ending: str, statuses: list[Any]) -> bool:
    """The others may end with an error, or as rank 0 does, but neither by a signal of their own nor never."""
    wanted = {**ENDINGS, **SIGNALS}[ending]
    return statuses[0] == wanted and all(one == wanted or one in (0, 1) for one in statuses[1:])


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
        ("before_join", "sigint", False, False),
        ("joining", "sigterm-handled", False, False),
        ("probing", "sigint", False, False),
        ("waiting", "sigterm", False, False),
        ("summing", "fall", False, False),
        ("summing", "exception", False, True),
        ("joined", "fork", False, True),
        ("failed", "exit", True, False),
    ],
)
def test_a_program_ends_in_order_in_any_state(network: Testbed, case: tuple[str, str, bool, bool]) -> None:
    statuses = end(network, "-".join(map(str, case)), *case)
    assert as_expected(case[1], statuses), statuses


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
def test_what_is_destroyed_is_gone_with_its_threads_without_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch, use: Callable[[ProcessGroup], None]
) -> None:
    def join(*_: Any) -> None:
        raise JobError("no switch")

    monkeypatch.setattr("inagg.process_group.join", join)
    store = dist.HashStore()
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
        until(lambda: threads() == before)  # the kernel forgets them a little later than they can be joined
    finally:
        gc.enable()
