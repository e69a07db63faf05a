# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios, and finds the simplest one that fails as a given one does."""

from collections import Counter
from collections.abc import Sequence

from tests.simulation.scenario import Scenario
from tests.simulation.switches import Programs
from tests.simulation.world import World, WorldError

# Runs that a shrinking takes, at most.
_MOST_RUNS = 400


def failure_of(scenario: Scenario, programs: Programs) -> WorldError | None:
    """What goes wrong in a scenario; None: nothing."""
    try:
        World(scenario, programs).run()
    except WorldError as error:
        return error
    return None


def shrunk(scenario: Scenario, failure: WorldError, programs: Programs) -> tuple[Scenario, WorldError]:
    """A scenario that fails, of which nothing more can be left out, and its failure."""
    runs = 0
    simpler = scenario.simpler()
    while runs < _MOST_RUNS and (candidate := next(simpler, None)) is not None:
        runs += 1
        if (found := failure_of(candidate, programs)) is not None:
            scenario, failure, simpler = candidate, found, candidate.simpler()
    return scenario, failure


def run(seeds: Sequence[int]) -> tuple[Counter[str], list[int]]:
    """Run worlds. Returns what was seen in them, and the seeds of those that failed."""
    programs = Programs()
    seen: Counter[str] = Counter()
    failed = []
    for seed in seeds:
        world = World(Scenario.drawn(seed), programs)
        try:
            world.run()
        except WorldError:
            failed.append(seed)
        seen.update(world.seen)
    programs.close()
    return seen, failed
