# SPDX-License-Identifier: Apache-2.0
"""Whole jobs in virtual time, hit by faults at any event: see `tests.simulation.world`."""

from collections.abc import Iterator

import pytest

from inagg.membership.meeting import Meeting
from tests.conformance.jobs import P4Jobs
from tests.simulation.ranks import Rank
from tests.simulation.runs import failure_of, run, shrunk
from tests.simulation.scenario import Scenario
from tests.simulation.world import World, WorldError

SEEDS = 2000


@pytest.fixture(scope="module")
def p4() -> Iterator[P4Jobs]:
    jobs = P4Jobs()
    yield jobs
    jobs.program.close()


@pytest.mark.parametrize("part", range(4))
def test_no_fault_costs_a_sum(part: int) -> None:
    size = SEEDS // 4
    seen, failed = run(range(part * size, (part + 1) * size))
    assert failed == []
    assert seen["the switch"] > 0.2 * size
    assert seen["filled"] > 0.05 * size
    assert seen["goes back"] > 0
    assert seen["failed"] <= 0.02 * size  # jobs that a rank has left cannot change their way


def test_a_seed_is_one_story(p4: P4Jobs) -> None:
    for seed in range(100, 120):
        stories = []
        for _ in range(2):
            world = World(Scenario.drawn(seed), p4)
            world.run()
            p4.end()
            stories.append((world.story, world.network.now, world.network.packets))
        assert stories[0] == stories[1]


def first_failure(p4: P4Jobs) -> tuple[Scenario, WorldError]:
    for seed in range(300):
        scenario = Scenario.drawn(seed)
        if (failure := failure_of(scenario, p4)) is not None:
            return scenario, failure
    pytest.fail("no world has noticed")


def test_a_result_that_nobody_gives_is_found_and_its_story_is_short(
    p4: P4Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Meeting, "_gifts", lambda _self, _chunks: [])
        scenario, failure = shrunk(*first_failure(p4), p4)
    assert failure_of(scenario, p4) is None
    assert len(scenario.faults) == 1
    assert len(str(failure).splitlines()) < 20


def test_a_damaged_result_is_found(p4: P4Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Rank.kept
    with monkeypatch.context() as broken:
        broken.setattr(Rank, "kept", lambda rank, chunk: whole(rank, chunk)[:-1] + b"?")
        scenario, failure = first_failure(p4)
    assert "that another rank has kept is not right" in str(failure)
    assert failure_of(scenario, p4) is None
