# SPDX-License-Identifier: Apache-2.0
"""Jobs in virtual time, hit by faults at any event: see `tests.simulation.world`."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from inagg._core import JobShape
from inagg.membership.meeting import Meeting
from inagg_contract.aggregation import LEASED, SHARED
from inagg_simulator.p4_switch import HEADERS_BYTES
from inagg_simulator.reference import HEADER, WORD_BYTES
from inagg_simulator.virtual_network import PERFECT
from tests.conformance.examples import WORDS
from tests.simulation.links import Clocked
from tests.simulation.ranks import Rank
from tests.simulation.runs import failure_of, run, shrunk
from tests.simulation.scenario import Fault, Scenario
from tests.simulation.switches import Programs, SwitchBox
from tests.simulation.world import World, WorldError

SEEDS = 2000


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    made = Programs()
    yield made
    made.close()


@pytest.mark.parametrize("part", range(4))
def test_no_fault_costs_a_sum(part: int) -> None:
    size = SEEDS // 4
    seen, failed = run(range(part * size, (part + 1) * size))
    assert failed == []
    for way in ("the switch", "two roots", "shared slots", "servers"):
        assert seen[way] > 0.1 * size
    assert seen["filled"] > 0.05 * size
    assert seen["goes back"] > 0
    assert seen["failed"] <= 0.05 * size  # jobs that a rank has left, or of which a packet was damaged


def test_a_seed_is_one_story(programs: Programs) -> None:
    for seed in range(100, 120):
        stories = []
        for _ in range(2):
            world = World(Scenario.drawn(seed), programs)
            world.run()
            stories.append((world.story, world.network.now, world.network.packets))
        assert stories[0] == stories[1]


def test_a_rank_that_stands_still_after_its_failure_does_not_stop_the_world(programs: Programs) -> None:
    drawn = next(one for one in map(Scenario.drawn, range(1000)) if one.workers == (1,) and one.servers > 0)
    faults = (Fault(0.1, "bit flips", 0, 0.0), Fault(0.3, "rank stops", 0, 0.3))
    scenario = replace(drawn, impairment=PERFECT, lateness=0.3, sizes=(2000,) * 5, faults=faults)
    stories = []
    for seed in range(30):
        world = World(replace(scenario, seed=seed), programs)
        world.run()
        stories.append("\n".join(world.story))
    assert any(
        "gives up" in story and story.index("gives up") < story.index("rank stops") for story in stories
    )


def first_failure(
    programs: Programs, of: Callable[[Scenario], bool] = lambda _: True
) -> tuple[Scenario, WorldError]:
    """Of the first 300 scenarios of a kind."""
    scenarios = filter(of, map(Scenario.drawn, range(3000)))
    for _, scenario in zip(range(300), scenarios, strict=False):
        if (failure := failure_of(scenario, programs)) is not None:
            return scenario, failure
    pytest.fail("no world has noticed")


def test_a_result_that_nobody_gives_is_found_and_its_story_is_short(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Meeting, "_gifts", lambda _self, _chunks: [])
        scenario, failure = shrunk(*first_failure(programs), programs)
    assert failure_of(scenario, programs) is None
    assert len(scenario.faults) == 1
    assert len(str(failure).splitlines()) < 20


def test_a_damaged_result_is_found(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Rank.kept
    with monkeypatch.context() as broken:
        broken.setattr(Rank, "kept", lambda rank, chunk: whole(rank, chunk)[:-1] + b"?")
        scenario, failure = first_failure(programs)
    assert "that another rank has kept is not right" in str(failure)
    assert failure_of(scenario, programs) is None


@pytest.mark.parametrize("kind", [LEASED, SHARED])
def test_ranks_that_freeze_after_they_have_published_are_found_on_trees(
    kind: str, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, go_on = Clocked.fill, Clocked.go_on

    def fill_late(engine: Clocked, result: bytes, now: float) -> bool:
        engine.freeze()
        return fill(engine, result, now)

    def go_on_late(engine: Clocked, job: JobShape, **way: Any) -> None:
        engine.freeze()
        go_on(engine, job, **way)

    with monkeypatch.context() as broken:
        broken.setattr(Rank, "freeze", lambda rank: list(rank.engine.next_chunks()))
        broken.setattr(Clocked, "fill", fill_late)
        broken.setattr(Clocked, "go_on", go_on_late)
        scenario, _ = first_failure(programs, lambda each: each.kind == kind and each.leaves > 1)
    assert failure_of(scenario, programs) is None


def test_a_switch_that_forgets_whose_contributions_its_sum_has_is_found(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = SwitchBox.process

    def forgetful(box: SwitchBox, port: int, frame: bytes, now: float) -> list[tuple[int, bytes]]:
        return [(to, _without_a_rank(left)) for to, left in whole(box, port, frame, now)]

    with monkeypatch.context() as broken:
        broken.setattr(SwitchBox, "process", forgetful)
        scenario, failure = shrunk(*first_failure(programs, lambda each: each.kind == SHARED), programs)
    assert "checksum" in str(failure)
    assert failure_of(scenario, programs) is None


def _without_a_rank(frame: bytes) -> bytes:
    """A frame that carries the contributions of several ranks, without the bit of the last one."""
    first = HEADERS_BYTES + HEADER.size
    members = int.from_bytes(frame[first : first + 8], "big")
    several = len(frame) == first + 8 + WORD_BYTES * WORDS and members.bit_count() > 1
    return (
        frame[:first] + (members & members - 1).to_bytes(8, "big") + frame[first + 8 :] if several else frame
    )
