# SPDX-License-Identifier: Apache-2.0
"""Whatever ends the making of a group at one rank is known at all of them within seconds."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from inagg._assembly import Assembly
from inagg.errors import ConfigurationError, JobError, PeerLostError
from inagg_testbed.errors import WorkerFailedError
from inagg_testbed.links import LinkSpec
from inagg_testbed.testbed import Testbed, open_testbed

WORKER = Path(__file__).with_name("joining_worker.py")
LIMIT = timedelta(seconds=20)
ENOUGH_S = 10.0


class Watched:
    """Connections to other ranks, of which some have ended."""

    def __init__(self, *ended: int) -> None:
        self._ended = ended
        self.open = True

    def ended(self) -> tuple[int, ...]:
        return self._ended

    def break_off(self) -> None:
        self.open = False

    def unwatch(self) -> None:
        pass


@pytest.mark.parametrize("kind", [OSError, ConfigurationError, SystemExit, KeyboardInterrupt])
def test_an_exception_at_one_rank_reaches_those_that_wait(kind: type[BaseException]) -> None:
    store = dist.HashStore()
    ours, theirs = (Assembly(store, rank, 2, LIMIT) for rank in range(2))
    theirs.connections = watched = Watched()
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(ours.tell_all, "words", "here")
        with pytest.raises(kind), theirs:
            raise kind("too many open files")
    with pytest.raises(JobError, match=r"rank 1 could not make the group: .*too many open files"):
        waiting.result(timeout=5)
    assert not watched.open


def test_the_first_failure_is_the_one_that_is_told() -> None:
    store = dist.HashStore()
    for rank, problem in ((2, "first"), (1, "second")):
        with pytest.raises(OSError, match=problem), Assembly(store, rank, 3, LIMIT):
            raise OSError(problem)
    with pytest.raises(JobError, match="rank 2 could not make the group: OSError: first"):
        Assembly(store, 0, 3, LIMIT).check()


def test_a_rank_that_has_told_all_before_it_ended_is_missed_by_nobody() -> None:
    store = dist.HashStore()
    ours, theirs = (Assembly(store, rank, 2, LIMIT) for rank in range(2))
    with ThreadPoolExecutor(1) as other:
        told = other.submit(theirs.tell_all, "words", "there")
        store.set("words/0", "0")
        told.result(timeout=5)
    ours.connections = Watched(1)
    assert ours.tell_all("words", "here") == ["here", "there"]


def test_a_rank_whose_connections_have_ended_is_named_or_its_host_s_ranks_are() -> None:
    ranks = Assembly(dist.HashStore(), 0, 4, LIMIT)
    ranks.connections = Watched(2)
    with pytest.raises(PeerLostError, match="lost rank 2"):
        ranks.tell_all("words", "here")
    ranks.connections = Watched(2, 3)
    with pytest.raises(JobError, match="lost one of the ranks 2, 3"):
        ranks.check()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    with open_testbed(
        hosts=3, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("joining")
    ) as testbed:
        yield testbed


@pytest.mark.netns
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("out of descriptors", "rank 1 could not"),
        ("interrupted", "rank 1 could not make the group: KeyboardInterrupt: as programs do"),
        ("exits", "rank 1 could not make the group: SystemExit: as programs do"),
        ("killed", "lost rank 1 (its process has ended, or its connection, while the group was made)"),
    ],
)
def test_ranks_learn_of_one_that_ends_before_it_has_joined(network: Testbed, how: str, message: str) -> None:
    group = network.launch([sys.executable, str(WORKER), how], name=how.replace(" ", "-"))
    with pytest.raises(WorkerFailedError):
        group.follow(lambda *_: None, timeout_s=100, watch=network.services)
    said: list[list[dict[str, Any]]] = [
        [json.loads(line) for line in worker.process.log_path.read_text().splitlines() if line[:1] == "{"]
        for worker in group.workers
    ]
    failed_at = said[1][0]["at"]
    for rank in (0, 2):
        (noticed,) = said[rank]
        assert message in noticed["message"]
        assert noticed["at"] - failed_at < ENOUGH_S
