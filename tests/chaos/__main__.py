# SPDX-License-Identifier: Apache-2.0
"""python -m tests.chaos [REGEX ...]: run cases, write a table, exit with 1 if something was not as it should be."""

import argparse
import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from inagg_testbed.network.lifecycle import signals_raise
from tests.chaos.cases import cases
from tests.chaos.run import Outcome, outcomes, undisturbed
from tests.chaos.table import markdown

AT_ONCE = 3  # cases that run at the same time: they mostly wait


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/chaos"))
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument(
        "selected",
        nargs="*",
        metavar="REGEX",
        help='only cases that match all of these, such as "kill|stop" leased',
    )
    arguments = parser.parse_args()
    chosen = [case for case in cases() if all(re.search(text, str(case)) for text in arguments.selected)]
    if not chosen:
        parser.error("no case matches; they are like " + ", ".join(str(case) for case in list(cases())[:3]))
    console, folder = Console(), arguments.results / time.strftime("%Y%m%d-%H%M%S")
    found: list[Outcome] = []
    with signals_raise():
        right = undisturbed(folder / "logs")
        for outcome in outcomes(chosen, folder / "logs", right, arguments.at_once):
            found.append(outcome)
            console.print(
                f"{len(found)}/{len(chosen)} {line(outcome)}", markup=False, highlight=False, soft_wrap=True
            )
            (folder / "chaos.json").write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")
            (folder / "chaos.md").write_text(markdown(found))
    broken = [outcome for outcome in found if outcome.broken]
    print(
        f"{len(found)} cases, {sum(each.sums for each in found):,} sums; not as they should be: {len(broken)}"
    )
    for outcome in broken:
        print(f"{outcome.case}: {'; '.join(outcome.broken)}\n  {outcome.logs}")
    print(f"table, JSON and logs: {folder}")
    return int(bool(broken))


def line(outcome: Outcome) -> str:
    """An outcome in a line."""
    to = f", on {'; '.join(outcome.to)}" if outcome.to else ""
    verdict = f": {'; '.join(outcome.broken)}" if outcome.broken else ""
    return f"{outcome.case}: {outcome.ended} after {outcome.seconds:.1f} s{to}{verdict}"


if __name__ == "__main__":
    sys.exit(main())
