# SPDX-License-Identifier: Apache-2.0
"""Kills replicas of examples/torchft_digits.py one after another, over inagg and over gloo. Installs torchft first.

Writes results/torchft/report.md: how long the others took to go on, the steps that were not committed, and the longest
pause while a replacement joined. Exit status 1 if a recovery over inagg took longer than 5 s. Needs no root.
"""

import argparse
import shutil
import sys
from pathlib import Path
from statistics import median

from tests import ROOT
from tests.torchft.training import Recovery, training
from tests.trainers.catalog import Trainer
from tests.trainers.installation import PYTHON, NotInstalledError, create, install

RESULTS = ROOT / "results" / "torchft"
TORCHFT = Trainer("torchft", "torchft", ("torchft==0.2.0",), "")
LONGEST_S = 5.0


def row(backend: str, recoveries: list[Recovery], losses: list[float]) -> str:
    """A line of the report. losses: of the test digits, before the first kill and at the end."""
    seconds, pauses = ([getattr(each, name) for each in recoveries] for name in ("seconds", "pause"))
    lost = [each.lost for each in recoveries]
    return (
        f"| {backend} | {len(recoveries)} | {median(seconds):.2f} | {max(seconds):.2f} | {sum(lost)} | "
        f"{median(pauses):.2f} | {max(pauses):.2f} | {losses[0]:.3f} | {losses[1]:.3f} |"
    )


def kill_in_turn(backend: str, kills: int) -> tuple[list[Recovery], list[float]]:
    recoveries = []
    with training(PYTHON, RESULTS, backend) as replicas:
        losses = [replicas.loss()]
        for number in range(kills):
            recoveries.append(replicas.kill(number % len(replicas.replicas)))
            print(f"{backend}, kill {number + 1}: {recoveries[-1]}", flush=True)
        losses.append(replicas.loss())
    return recoveries, losses


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torchft", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="of each backend (default: %(default)s)")
    kills = parser.parse_args().kills
    create(again=False)
    try:
        install(TORCHFT)
    except NotInstalledError as error:
        sys.exit(f"torchft cannot be installed: {error}")
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    lines = [
        "| backend | kills | recovery, s, median | longest | steps lost | pause at a join, s, median | longest "
        "| loss before | loss after |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    slowest = 0.0
    for backend in ("gloo", "inagg"):
        recoveries, losses = kill_in_turn(backend, kills)
        lines.append(row(backend, recoveries, losses))
        slowest = max(each.seconds for each in recoveries)
    report = "\n".join(lines)
    Path(RESULTS / "report.md").write_text(report + "\n")
    print(report)
    sys.exit(slowest > LONGEST_S)


if __name__ == "__main__":
    main()
