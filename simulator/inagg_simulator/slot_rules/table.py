# SPDX-License-Identifier: Apache-2.0
"""Decision tables: one rule for each combination of facts."""

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import product
from typing import Generic, NamedTuple, Protocol, TypeVar


class Case(NamedTuple):
    """When a rule holds, in one column. text: as the page says it. facts: each of which it holds for."""

    text: str
    facts: frozenset[Enum]


def case(text: str, facts: Iterable[Enum]) -> Case:
    """A case. facts: one or several, or an enum for all of its facts."""
    return Case(text, frozenset(facts))


class Action(Protocol):
    """What a rule does."""

    @property
    def text(self) -> str:
        """As the page says it."""


A = TypeVar("A", bound=Action)


class Rule(NamedTuple, Generic[A]):
    """A row. cases: one for each of the table's kinds of facts. counters: what counts the packet."""

    cases: tuple[Case, ...]
    action: A
    counters: tuple[str, ...]


def rule(*cases: Case, does: A, counts: str) -> Rule[A]:
    """A row. counts: the names of the counters."""
    return Rule(cases, does, tuple(counts.split()))


class Table(Generic[A]):
    """A decision table. heads: of its columns on the page, one for each kind of facts and one for the action."""

    def __init__(
        self, heads: Sequence[str], facts: Sequence[Iterable[Enum]], rules: Sequence[Rule[A]]
    ) -> None:
        """Raises ValueError unless each combination of facts has exactly one rule, and no rule has others."""
        self.heads, self.rules = heads, rules
        self._rule_of: dict[tuple[Enum, ...], Rule[A]] = {}
        for one in rules:
            for combination in product(*(column.facts for column in one.cases)):
                if combination in self._rule_of:
                    raise ValueError(f"{combination} has two rules: {self._rule_of[combination]} and {one}")
                self._rule_of[combination] = one
        known = set(product(*facts))
        if missing := known - self._rule_of.keys():
            raise ValueError(f"no rule for {sorted(missing, key=str)}")
        if others := self._rule_of.keys() - known:
            raise ValueError(f"rules for what is no combination of facts: {sorted(others, key=str)}")

    def __getitem__(self, facts: tuple[Enum, ...]) -> Rule[A]:
        """The rule for a combination of facts, one of each kind."""
        return self._rule_of[facts]

    def markdown(self) -> str:
        """The table as the page has it."""
        rows = [
            (
                *(column.text for column in one.cases),
                one.action.text,
                ", ".join(f"`{c}`" for c in one.counters),
            )
            for one in self.rules
        ]
        lines = [(*self.heads, "counter"), *rows]
        written = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([written[0], "|" + "---|" * len(lines[0]), *written[1:]])
