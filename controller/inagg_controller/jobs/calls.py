# SPDX-License-Identifier: Apache-2.0
"""Whether the ranks of a job call the same collectives (docs/protocol.md, 7.1).

Every rank numbers the collectives it begins on its group, from 1, and keeps a digest of all of them so far beside the
text of each. A heartbeat says how many have begun, and answers the last question: the digests and texts of some of
them. Equal digests at one number mean equal histories up to there, so the controller asks everybody about the greatest
number that all have begun, and, when the digests differ, about all numbers since they last agreed. What a rank has not
begun yet is never held against it: a late rank is no mismatch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Call(NamedTuple):
    """One collective. digest: 32 bits, of its text and of all before it."""

    digest: int
    text: str


class Question(NamedTuple):
    """Asks for the calls from one number to another."""

    first: int
    last: int


class Wait(NamedTuple):
    """How many sums a rank has done, and how long it has waited, in all, for other ranks to begin them."""

    sums: int
    waited_s: float


NEVER_WAITED = Wait(0, 0.0)


@dataclass(frozen=True, slots=True)
class Report:
    """What a heartbeat says.

    begun: the number of the last call. question: the one that `calls` answers, up to its last number; the first ones
    are missing if the rank has forgotten them, and all if it has begun too many since.
    """

    begun: int
    question: Question | None = None
    calls: Sequence[Call] = ()
    wait: Wait = NEVER_WAITED


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first collective in which ranks differ, as far as they remember. calls: rank -> text."""

    number: int
    calls: Mapping[int, str]

    def __str__(self) -> str:
        """ "rank 0: collective 17 is all_reduce(...); ranks 1, 2: collective 17 is broadcast(...)"."""
        ranks: dict[str, list[int]] = {}
        for rank, text in sorted(self.calls.items()):
            ranks.setdefault(text, []).append(rank)
        return "; ".join(
            f"rank{'s' if len(those) > 1 else ''} {', '.join(map(str, those))}: "
            f"collective {self.number} is {text}"
            for text, those in ranks.items()
        )


class Comparison:
    """Compares the calls of `workers` ranks. `question` is what every rank is to be asked, None for nothing."""

    def __init__(self, workers: int) -> None:
        self.question: Question | None = None
        self._workers = workers
        self._agreed = 0
        self._begun: dict[int, int] = {}
        self._answers: dict[int, Sequence[Call]] = {}

    def hear(self, rank: int, report: Report) -> Mismatch | None:
        """Take a rank's report; returns the mismatch once it is certain. Reports may arrive out of order."""
        self._begun[rank] = max(self._begun.get(rank, 0), report.begun)
        if self.question is not None and report.question == self.question:
            if report.calls:
                self._answers[rank] = report.calls
            else:  # forgotten: what has begun since is to be compared instead
                self._ask(None)
        if self.question is not None and len(self._answers) == self._workers:
            if len({calls[-1].digest for calls in self._answers.values()}) == 1:
                self._agreed = self.question.last
                self._ask(None)
            elif self.question.first == self._agreed + 1:
                return _first_difference(self._answers, self.question.last)
            else:
                self._ask(Question(self._agreed + 1, self.question.last))
        if self.question is None and len(self._begun) == self._workers:
            common = min(self._begun.values())
            if common > self._agreed:
                self._ask(Question(common, common))
        return None

    def _ask(self, question: Question | None) -> None:
        self.question = question
        self._answers = {}


def _first_difference(answers: Mapping[int, Sequence[Call]], last: int) -> Mismatch:
    """In answers that end with call `last`, whose digests differ there. Named by texts, as far as all remember."""
    remembered = min(len(calls) for calls in answers.values())
    for back in range(remembered, 0, -1):
        texts = {rank: calls[-back].text for rank, calls in answers.items()}
        if len(set(texts.values())) > 1:
            return Mismatch(last - back + 1, texts)
    return Mismatch(
        last - remembered + 1, dict.fromkeys(answers, "later than the first difference, which is forgotten")
    )
