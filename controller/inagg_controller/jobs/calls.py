# SPDX-License-Identifier: Apache-2.0
"""Checks whether the ranks of a job call the same collectives (docs/protocol.md, 7.1).

Each rank numbers the collectives that it starts on its group, from 1, and keeps for each its text and a digest of all
collectives up to it. A heartbeat contains the number of the last collective and the answer to the last question:
digests and texts of a range of collectives. Equal digests at a number mean equal histories up to it. So the controller
asks all ranks about the greatest number that all have started; if the digests differ, it asks about the numbers since
the last agreement, and then about the first one at which they differ, for its texts. Only collectives that all ranks
have started are compared, so a late rank is not a mismatch.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inagg_contract.documents import MOST_CALLS, LongestWait, RankTraffic
from inagg_contract.ranks import name_ranks
from inagg_controller.jobs.servers import Summed

# Characters of different texts that are kept of a job.
_MOST_TEXT = 4096
_OTHER = "another call, whose text is too long to keep beside the others"
_FORGOTTEN = "after the first difference, which the ranks have forgotten"


class Call(NamedTuple):
    """One collective. digest: 32 bits over its text and the texts of all collectives before it."""

    digest: int
    text: str


class Question(NamedTuple):
    """Asks for the calls with numbers from first to last."""

    first: int
    last: int


class Wait(NamedTuple):
    """How many sums a rank has completed, and its time of waiting for other ranks to start them: in all, and in one.

    loading_s, rtt_s: what may make the rank late, for the other ranks.
    """

    sums: int
    waited_s: float
    longest: LongestWait | None = None
    loading_s: float = 0.0
    rtt_s: float = 0.0


NEVER_WAITED = Wait(0, 0.0)


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a heartbeat.

    begun: the number of the last call. question: the question that `calls` answers. `calls` ends with the question's
    last number; its first calls are missing if the rank has forgotten them, and all if it has started too many since.
    summed: by the server in the rank's process; None: it runs none of the job's. switch_silent: the switch of the
    rank's host does not answer it. traffic: what it has sent and received.
    """

    begun: int
    question: Question | None = None
    calls: Sequence[Call] = ()
    wait: Wait = NEVER_WAITED
    summed: Summed | None = None
    switch_silent: bool = False
    traffic: RankTraffic | None = None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first collective in which ranks differ, among those that they remember. calls: rank -> text."""

    number: int
    calls: Mapping[int, str]

    def __str__(self) -> str:
        return self.described(name_ranks)

    def ranks_by_text(self) -> dict[str, list[int]]:
        """Text -> the ranks that have it, in the order of the first of them."""
        ranks: dict[str, list[int]] = {}
        for rank, text in sorted(self.calls.items()):
            ranks.setdefault(text, []).append(rank)
        return ranks

    def described(self, titles: Callable[[Sequence[int]], str]) -> str:
        """ "rank 0: collective 17 is all_reduce(...); ranks 1, 2: collective 17 is broadcast(...)"."""
        return "; ".join(
            f"{titles(those)}: collective {self.number} is {text}"
            for text, those in self.ranks_by_text().items()
        )


class Comparison:
    """Compares the calls of `workers` ranks. question: sent to every rank with its next heartbeat; None: nothing.

    Of the answers to a question about several numbers it keeps the digests of the first, and where each other differs
    from that. Of those about one number it keeps digests and texts, of the latter `_MOST_TEXT` characters in all.
    """

    def __init__(self, workers: int) -> None:
        self.question: Question | None = None
        self._workers = workers
        self._agreed = 0
        self._begun: dict[int, int] = {}
        self._forget_answers()

    def hear(self, rank: int, report: Report) -> Mismatch | None:
        """Process a rank's report; return the mismatch once it is certain. Reports may arrive out of order."""
        self._begun[rank] = max(self._begun.get(rank, 0), report.begun)
        question = self.question
        if question is not None and report.question == question:
            if not report.calls:  # the rank has forgotten these calls: compare later ones
                self._ask(None)
            elif rank not in self._answered:
                if question.first == question.last:
                    self._note_text(rank, report.calls[-1])
                else:
                    self._note_digests(question.last, array("I", [call.digest for call in report.calls]))
                self._answered.add(rank)
        if self.question is not None and len(self._answered) == self._workers:
            found = self._judge_one() if self.question.first == self.question.last else self._judge_several()
            if found is not None:
                return found
        if self.question is None and len(self._begun) == self._workers:
            common = min(self._begun.values())
            if common > self._agreed:
                self._ask(Question(common, common))
        return None

    def close(self) -> None:
        """Forget everything: the job has ended."""
        self._begun = {}
        self._ask(None)

    def _ask(self, question: Question | None) -> None:
        self.question = question
        self._forget_answers()

    def _forget_answers(self) -> None:
        self._answered: set[int] = set()
        self._texts: dict[int, str] = {}  # by rank; equal ones are one object
        self._distinct: dict[str, str] = {}
        self._one: set[int] = set()  # digests of the number that was asked for
        self._first = array("I")  # digests of the first answer, which end with the question's last number
        self._known_from = 0  # the first number that all answers so far have
        self._parted: int | None = None  # the first number at which an answer differs from the first

    def _note_text(self, rank: int, call: Call) -> None:
        text = call.text
        if text not in self._distinct:
            room = _MOST_TEXT - sum(map(len, self._distinct))
            text = text if len(text) <= room else _OTHER
        self._texts[rank] = self._distinct.setdefault(text, text)
        self._one.add(call.digest)

    def _note_digests(self, last: int, digests: "array[int]") -> None:
        """Note an answer that ends with number `last`."""
        if not self._answered:
            self._first = digests
        common = min(len(self._first), len(digests))
        for number, (one, other) in enumerate(
            zip(self._first[-common:], digests[-common:], strict=True), last - common + 1
        ):
            if one != other:
                self._parted = number if self._parted is None else min(self._parted, number)
                break
        self._known_from = max(self._known_from, last - common + 1)

    def _judge_one(self) -> Mismatch | None:
        """Compare the digests of one number. Different ones after equal histories are a mismatch."""
        assert self.question is not None
        number = self.question.last
        if len(self._one) == 1:
            self._agreed = number
            self._ask(None)
        elif number > self._agreed + 1:
            self._ask(Question(max(self._agreed + 1, number - MOST_CALLS + 1), number))
        elif len(self._distinct) > 1:
            return Mismatch(number, dict(self._texts))
        else:
            return self._forgotten(number)
        return None

    def _judge_several(self) -> Mismatch | None:
        """Find the first number at which digests differ, and ask for the texts there."""
        assert self.question is not None
        if self._parted is None:
            self._agreed = self.question.last
            self._ask(None)
        elif self._parted < self._known_from or self._agreed + 1 < self._parted == self._known_from:
            return self._forgotten(self._known_from)  # not all ranks know it, or the call before it
        else:
            self._agreed = self._parted - 1
            self._ask(Question(self._parted, self._parted))
        return None

    def _forgotten(self, number: int) -> Mismatch:
        return Mismatch(number, dict.fromkeys(range(self._workers), _FORGOTTEN))
