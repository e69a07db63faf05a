# SPDX-License-Identifier: Apache-2.0
"""python -m tests.nightly [PART ...]: run the parts of `make nightly`, and print one table of what ran and what not.

The outcome of each part is kept in results/nightly/ with the state of the tree that it is about. A part that has passed
in this state does not run again: a night that was cut off goes on where it was. --again runs all. Exit status 1 if a
part failed.
"""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests import ROOT
from tests.nightly.outcomes import FAILED, PASSED, SKIPPED, Outcome, Outcomes, run, state_of_tree
from tests.nightly.parts import PARTS, Part

RESULTS = ROOT / "results" / "nightly"


def main(
    parts: Annotated[list[str] | None, typer.Argument(metavar="PART", help="By default all.")] = None,
    again: Annotated[bool, typer.Option(help="Run parts that have passed in this state, too.")] = False,
    results: Annotated[Path, typer.Option(help="Where outcomes and logs are kept.")] = RESULTS,
) -> None:
    """Run the parts of `make nightly`. Finished ones are kept: a night that was cut off goes on where it was."""
    known = {part.name: part for part in PARTS}
    if unknown := sorted(set(parts or ()) - known.keys()):
        sys.exit(f"no part {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [part for part in PARTS if not parts or part.name in parts]
    outcomes = Outcomes(results, state_of_tree())
    for part in chosen:
        kept = outcomes.of(part.name)
        if kept is not None and kept.verdict == PASSED and not again:
            print(f"{part.name}: passed already, {kept.when}")
            continue
        print(
            f"{time.strftime('%H:%M:%S')} {part.name}: {part.promise}, about {part.minutes} min", flush=True
        )
        outcomes.keep(part.name, run(part, results / f"{part.name}.log"))
    found = [(part, outcomes.of(part.name)) for part in PARTS]
    show(found)
    sys.exit(any(outcome is not None and outcome.verdict == FAILED for _, outcome in found))


def show(found: list[tuple[Part, Outcome | None]]) -> None:
    """Print the table."""
    table = Table("part", "promise", "outcome", "min", "why")
    for part, outcome in found:
        if outcome is None:
            table.add_row(part.name, part.promise, "not run", "", "not asked for")
            continue
        minutes = "" if outcome.verdict == SKIPPED else f"{outcome.seconds / 60:.1f}"
        table.add_row(part.name, part.promise, outcome.verdict, minutes, outcome.why)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    typer.run(main)
