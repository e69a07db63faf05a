# SPDX-License-Identifier: Apache-2.0
"""Ranks make group after group with a store, without torch's default process group."""

import sys
from pathlib import Path

import pytest
from torch._C._distributed_c10d import HashStore

from inagg.errors import ConfigurationError
from inagg.options import Options
from inagg.process_group import ProcessGroup
from inagg_testbed.errors import WorkerFailedError
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import open_testbed
from inagg_testbed.network.workers import Event

WORKER = Path(__file__).with_name("reconfigure_worker.py")
RANKS = 3
NOBODY = Options(controller="http://127.0.0.1:9")


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory, forked_processes: None) -> list[list[Event]]:
    """Each rank's events, in order. The last rank kills itself; no other may fail."""
    found: list[list[Event]] = [[] for _ in range(RANKS)]
    with open_testbed(
        hosts=RANKS, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("results")
    ) as testbed:
        group = testbed.launch([sys.executable, str(WORKER), "{events}"], name="reconfigure")
        group.failure_grace_s = 60
        with pytest.raises(WorkerFailedError) as failure:
            group.follow(lambda rank, event: found[rank].append(event), timeout_s=120, watch=testbed.services)
        assert failure.value.failures.keys() == {RANKS - 1}, failure.value
    return found


def sums(events: list[Event]) -> list[Event]:
    return [event for event in events if event["event"] == "sum"]


@pytest.mark.netns
def test_each_group_has_its_own_job(events: list[list[Event]]) -> None:
    for of_rank in events:
        whole = sums(of_rank)[:4]
        assert [event["sum"] for event in whole] == [1 + 2 + 3] * 4
        assert len({event["job"] for event in whole}) == 4
        assert next(event for event in of_rank if event["event"] == "trained")["gradient"] == [2.0] * 4


@pytest.mark.netns
def test_worlds_and_their_groups_are_made_again_with_the_same_store(events: list[list[Event]]) -> None:
    for rank, of_rank in enumerate(events):
        found = next(event for event in of_rank if event["event"] == "worlds")["sums"]
        assert found == [[3.0, 1.0, 4.0], [3.0, 5.0, 2.0], [3.0, 5.0, 4.0]][rank]


@pytest.mark.netns
def test_the_other_ranks_go_on_in_a_new_group_when_a_rank_dies(events: list[list[Event]]) -> None:
    for of_rank in events[:-1]:
        lost = next(event for event in of_rank if event["event"] == "lost")
        assert lost["error"] == "PeerLostError"
        assert f"rank {RANKS - 1}" in lost["message"]
        assert sums(of_rank)[-1]["quorum"] == "survivors"
        assert sums(of_rank)[-1]["sum"] == 1 + 2


@pytest.mark.netns
@pytest.mark.parametrize("what", ["threads", "pythons", "descriptors"])
def test_an_aborted_group_leaves_nothing_behind(events: list[list[Event]], what: str) -> None:
    for of_rank in events[:-1]:
        first, *others = [event[what] for event in of_rank if event["event"] == "aborted"]
        assert others == [first] * 3


def test_a_rank_outside_the_group_s_size_is_refused() -> None:
    for rank, size in ((-1, 2), (2, 2), (0, 0)):
        with pytest.raises(ConfigurationError, match=f"rank {rank} is not in a group of size {size}"):
            ProcessGroup.create(HashStore(), rank, size, options=NOBODY)
