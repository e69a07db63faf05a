# SPDX-License-Identifier: Apache-2.0
"""A group loses a rank, goes on without it and then with its replacement. Programs that hold the group keep it."""

import sys
from pathlib import Path

import pytest

from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import open_testbed
from inagg_testbed.network.workers import Event

WORKER = Path(__file__).with_name("lost_rank_worker.py")
RANKS = 3

pytestmark = pytest.mark.netns


@pytest.fixture(scope="module", params=["leased", pytest.param("server", marks=pytest.mark.long)])
def events(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, forked_processes: None
) -> list[list[Event]]:
    """Each rank's events, in order."""
    found: list[list[Event]] = [[] for _ in range(RANKS)]
    with open_testbed(
        hosts=RANKS, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("results")
    ) as testbed:
        settings = {"INAGG_AGGREGATION": request.param}
        group = testbed.launch(
            [sys.executable, str(WORKER), "{events}"], name="lost-rank", environment=settings
        )
        group.follow(lambda rank, event: found[rank].append(event), timeout_s=120, watch=testbed.services)
    return found


def those(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event["event"] == kind]


def test_a_group_that_is_not_formed_does_no_collective(events: list[list[Event]]) -> None:
    for of_rank in events:
        (event,) = those(of_rank, "unformed")
        assert "call reconfigure first" in event["message"]
        assert event["path"] == "none"


def test_ranks_have_the_order_of_their_handles(events: list[list[Event]]) -> None:
    for rank, of_rank in enumerate(events[:-1]):
        formed = [(event["uuid"], event["rank"], event["size"]) for event in those(of_rank, "formed")]
        assert formed == [(1, rank, 3), (2, rank, 2), (3, rank, 3), (4, RANKS - 1 - rank, 3), (5, rank, 2)]


def test_sums_are_those_of_the_ranks_that_are_there(events: list[list[Event]]) -> None:
    for of_rank in events[:-1]:
        assert [event["sum"] for event in those(of_rank, "sum")] == [6.0, 3.0, 6.0, 6.0]
    without_the_second = [event["sum"] for event in those(events[-1], "sum")]
    assert without_the_second == [6.0, 6.0, 6.0]


def test_ddp_divides_by_the_ranks_that_are_there(events: list[list[Event]]) -> None:
    for of_rank in events[:-1]:
        means = [event["gradient"] for event in those(of_rank, "sum") if "gradient" in event]
        assert means == [2.0, 1.5]


def test_a_lost_rank_is_named_and_its_slots_are_free_within_a_second(events: list[list[Event]]) -> None:
    for of_rank in events[:-1]:
        (lost,) = those(of_rank, "lost")
        assert f"lost rank {RANKS - 1}" in lost["message"]
        assert (lost["held"] > 0) == (those(of_rank, "formed")[0]["path"] == "switch")
        assert lost["freed_s"] < 1.0


def test_a_rank_that_is_left_out_gets_an_error(events: list[list[Event]]) -> None:
    for of_rank in events[:-1]:
        assert [event["sum"] for event in those(of_rank, "left")] == [3.0]
    (out,) = those(events[-1], "left out")
    assert out["error"] == "PeerLostError"


def test_options_timeouts_and_counts_outlast_a_formation(events: list[list[Event]]) -> None:
    for of_rank in events[:-1]:
        _, *later = those(of_rank, "formed")
        assert {(event["seed"], event["timeout_s"]) for event in later} == {(7, 60.0)}
        assert those(of_rank, "sum")[-1]["calls"] > 4


def test_abort_ends_what_is_under_way_at_once(events: list[list[Event]]) -> None:
    (aborted,) = those(events[0], "aborted")
    assert aborted["waits"] == 2
    assert aborted["seconds"] < 1.0
