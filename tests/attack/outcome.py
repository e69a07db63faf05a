# SPDX-License-Identifier: Apache-2.0
"""What came of an attack, and whether that is what docs/ promise."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.attack.ranks import Sums


@dataclass
class Outcome:
    """One row of the table.

    amount: frames, cases, or what was done. seconds: how long the attack took, or, where something was killed, the time
    until every other rank had ended or gone on. named: for each rank whether its error names the cause, None for those
    without error. memory: part -> MB before and after. left: processes and interfaces that remained. broken: promises
    that were not kept; each names the place in docs/.
    """

    attack: str
    amount: str = ""
    sums: Sums = field(default_factory=Sums)
    seconds: float = 0.0
    statuses: list[int | None] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)
    named: list[bool | None] = field(default_factory=list)
    memory: dict[str, tuple[float, float]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    logs: str = ""

    @property
    def verdict(self) -> str:
        """What is wrong, if anything."""
        return "; ".join(self.broken) or "as promised"


def save(outcomes: Sequence[Outcome], folder: Path, name: str) -> None:
    """One attack's outcomes as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(outcome) for outcome in outcomes], indent=1)
    (folder / f"{name}.json").write_text(text + "\n")


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """The table; below it errors, and what was broken."""
    table = Table(title="attacks", title_justify="left")
    for column in (
        "attack",
        "amount",
        "sums",
        "wrong",
        "corrupt",
        "s",
        "exits",
        "named",
        "switch, controller MB",
    ):
        table.add_column(column, justify="right" if column in ("sums", "wrong", "corrupt", "s") else "left")
    for column in ("left behind", "kept"):
        table.add_column(column)
    for one in outcomes:
        table.add_row(
            one.attack,
            one.amount,
            *(f"{number:,}" for number in (one.sums.checked, one.sums.wrong, one.sums.corrupt)),
            f"{one.seconds:.1f}",
            " ".join("-" if status is None else str(status) for status in one.statuses),
            " ".join("-" if name is None else "yes" if name else "NO" for name in one.named),
            ", ".join(f"{before:.0f} > {after:.0f}" for before, after in one.memory.values()),
            ", ".join(one.left) or "nothing",
            "NO" if one.broken else "yes",
        )
    console.print(table)
    said = [(one, error) for one in outcomes for error in dict.fromkeys(filter(None, one.errors))]
    broken = [(one, promise) for one in outcomes for promise in one.broken]
    for title, lines in (("What ranks said", said), ("Promises that were not kept", broken)):
        console.print(f"\n{title}:" if lines else "", style="bold")
        for one, line in lines:
            console.print(f"{one.attack}: {line[:400]}", markup=False, soft_wrap=True)
