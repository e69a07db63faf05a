# SPDX-License-Identifier: Apache-2.0
"""The outcome of an attack, and whether it is what docs/ promise."""

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

    amount: what was done, such as the number of frames. seconds: the duration of the attack; after a kill, the time
    until all other ranks had ended or gone on. named: for each rank, whether its error names the cause; None without an
    error. memory: part -> MB before and after. left: processes, namespaces and interfaces that remained. broken:
    promises that were not kept, with the page of docs/ that makes the promise.
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
        """What is wrong, or "as promised"."""
        return "; ".join(self.broken) or "as promised"


def save(outcomes: Sequence[Outcome], folder: Path, name: str) -> None:
    """Write one attack's outcomes to `folder`/`name`.json."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps([asdict(outcome) for outcome in outcomes], indent=1)
    (folder / f"{name}.json").write_text(text + "\n")


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print the table, then the errors of ranks, then the broken promises."""
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
