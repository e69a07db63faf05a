# SPDX-License-Identifier: Apache-2.0
"""Checks whether the ranks of a job call the same collectives (docs/protocol.md, 7.1).

Each rank numbers the collectives that it starts on its group, from 1, and keeps for each its text and a digest of all
collectives up to it. A heartbeat contains the number of the last collective and the answer to the last question:
digests and texts of a range of collectives. Equal digests at a number mean equal histories up to it. So the controller
asks all ranks about the greatest number that all have started; if the digests differ, it asks about all numbers since
the last agreement. Only collectives that all ranks have started are compared, so a late rank is not a mismatch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inagg_controller.jobs.servers import Summed


class Call(NamedTuple):
    """One collective. digest: 32 bits over its text and the texts of all collectives before it."""

    digest: int
    text: str


class Question(NamedTuple):
    """Asks for the calls with numbers from first to last."""

    first: int
    last: int


class Wait(NamedTuple):
    """How many sums a rank has completed, and its total time of waiting for other ranks to start them."""

    sums: int
    waited_s: float


NEVER_WAITED = Wait(0, 0.0)


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a heartbeat.

    begun: the number of the last call. question: the question that `calls` answers. `calls` ends with the question's
    last number; its first calls are missing if the rank has forgotten them, and all if it has started too many since.
    summed: by the server in the rank's process; None: it runs none of the job's.
    """

    begun: int
    question: Question | None = None
    calls: Sequence[Call] = ()
    wait: Wait = NEVER_WAITED
    summed: Summed | None = None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first collective in which ranks differ, among those that they remember. calls: rank -> text."""

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
    """Compares the calls of `workers` ranks. question: sent to every rank with its next heartbeat; None: nothing."""

    def __init__(self, workers: int) -> None:
        self.question: Question | None = None
        self._workers = workers
        self._agreed = 0
        self._begun: dict[int, int] = {}
        self._answers: dict[int, Sequence[Call]] = {}

    def hear(self, rank: int, report: Report) -> Mismatch | None:
        """Process a rank's report; return the mismatch once it is certain. Reports may arrive out of order."""
        self._begun[rank] = max(self._begun.get(rank, 0), report.begun)
        if self.question is not None and report.question == self.question:
            if report.calls:
                self._answers[rank] = report.calls
            else:  # the rank has forgotten these calls: compare later ones
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
    """The first call that differs by its text, in answers that end with call `last` and differ in its digest."""
    remembered = min(len(calls) for calls in answers.values())
    for back in range(remembered, 0, -1):
        texts = {rank: calls[-back].text for rank, calls in answers.items()}
        if len(set(texts.values())) > 1:
            return Mismatch(last - back + 1, texts)
    return Mismatch(
        last - remembered + 1,
        dict.fromkeys(answers, "after the first difference, which the ranks have forgotten"),
    )
