# SPDX-License-Identifier: Apache-2.0
"""The table of chaos, in docs/faults.md."""

import itertools
import statistics
from collections.abc import Sequence
from typing import get_args

from tests.chaos.cases import FAULTS, Fault, Victim
from tests.chaos.run import Outcome

_HEADER = ("part", "fault", "a group is made", "leased", "shared", "server", "a group leaves")


def markdown(outcomes: Sequence[Outcome]) -> str:
    """A row for each part and fault. The columns of the kinds are of the phases in which a group sums."""
    lines = [_row(_HEADER), _row(["---"] * len(_HEADER))]
    for victim, managed, fault in itertools.product(get_args(Victim), (False, True), get_args(Fault)):
        of_row = [
            each
            for each in outcomes
            if (each.case.victim, each.case.managed, each.case.fault) == (victim, managed, fault)
        ]
        if of_row:
            lines.append(_row([of_row[0].case.title, FAULTS[fault], *_cells(of_row)]))
    return "\n".join(lines) + "\n"


def _cells(outcomes: Sequence[Outcome]) -> list[str]:
    ends = "join", "leave"
    columns = [
        [each for each in outcomes if each.case.when == "join"],
        *(
            [each for each in outcomes if each.case.kind == kind and each.case.when not in ends]
            for kind in ("leased", "shared", "server")
        ),
        [each for each in outcomes if each.case.when == "leave"],
    ]
    return [_cell(column) for column in columns]


def _cell(outcomes: Sequence[Outcome]) -> str:
    """ "goes on, 1.0 s (at most 1.4)"; with several outcomes the number of each."""
    found = []
    for ended in dict.fromkeys(each.ended for each in outcomes):
        seconds = [each.seconds for each in outcomes if each.ended == ended]
        text = f"{ended or 'broken'}, {statistics.median(seconds):.1f} s"
        text += f" (at most {max(seconds):.1f})" if len(seconds) > 1 else ""
        found.append(text if len(seconds) == len(outcomes) else f"{len(seconds)} of {len(outcomes)}: {text}")
    return "; ".join(found) or "-"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
