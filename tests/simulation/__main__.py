# SPDX-License-Identifier: Apache-2.0
"""python -m tests.simulation --seeds 100000: run the worlds of so many seeds. If one fails, shrink it, tell its story,
and exit with 1."""

import argparse
import os
import sys
from collections import Counter
from multiprocessing import get_context

from rich.progress import Progress

from tests.simulation.runs import failure_of, run, shrunk
from tests.simulation.scenario import Scenario
from tests.simulation.switches import Programs

_AT_ONCE = 100  # seeds that a process runs at a time


def tell(seed: int) -> None:
    """Shrink a seed that fails, and print its story."""
    programs = Programs()
    scenario = Scenario.drawn(seed)
    failure = failure_of(scenario, programs)
    if failure is None:
        print(f"seed {seed} does not fail when it is run alone")
    else:
        print(shrunk(scenario, failure, programs)[1])
    programs.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    arguments = parser.parse_args()
    end = arguments.first + arguments.seeds
    parts = [range(each, min(each + _AT_ONCE, end)) for each in range(arguments.first, end, _AT_ONCE)]
    seen: Counter[str] = Counter()
    failed: list[int] = []
    with get_context("spawn").Pool(os.cpu_count()) as pool, Progress() as progress:
        task = progress.add_task("seeds", total=arguments.seeds)
        for part, (found, broken) in zip(parts, pool.imap(run, parts), strict=True):
            seen += found
            failed += broken
            progress.advance(task, len(part))
    print(f"{arguments.seeds} seeds, {len(failed)} failed; ranks went on {dict(seen)}")
    if failed:
        print(f"seeds that failed: {failed[:20]}")
        tell(failed[0])
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
