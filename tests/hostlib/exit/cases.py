# SPDX-License-Identifier: Apache-2.0
"""The ways in which programs end, of test_exit.py and hunt.py; states.py is the program."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PROGRAM = Path(__file__).with_name("states.py")
RANKS = 2
# Rank 0 waits, and can be ended by a signal alone.
BUSY = ("before_join", "joining", "probing", "waiting", "leaving")
FREE = ("joined", "summing", "failed", "left")
# How a program ends, and the status of rank 0. A signal that Python has no handler for kills it at once.
ENDINGS = {"fall": 0, "exception": 1, "exit": 3, "fork": 3}
SIGNALS = {"sigint": -2, "sigterm": -15, "sigterm-handled": 3}


class Case(NamedTuple):
    """destroy: whether the group is destroyed before the end; fallen_back: whether gloo does its sums."""

    state: str
    ending: str
    destroy: bool = False
    fallen_back: bool = False

    @property
    def state_name(self) -> str:
        """As it is shown."""
        return self.state + "-destroyed" * self.destroy + "-fallen-back" * self.fallen_back

    @property
    def name(self) -> str:
        """For the names of logs."""
        return f"{self.state_name}-{self.ending}"

    @property
    def arguments(self) -> list[str]:
        """The program's."""
        return [self.state, self.ending, *["destroy"] * self.destroy]

    @property
    def environment(self) -> dict[str, str]:
        """The program's, beside a launcher's."""
        return {"INAGG_FALLBACK": "inner"} if self.fallen_back else {}

    @property
    def most(self) -> int:
        """How many ranks end so, if none fails before because another one has ended."""
        return 1 if self.state in BUSY else RANKS

    def wrong(self, statuses: Sequence[int | None]) -> int:
        """How many ranks have not ended as they should. Those but rank 0 may end with an error, or as rank 0 does, but
        neither by a signal of their own nor never."""
        wanted = self._wanted
        return sum(one != wanted and (rank == 0 or one not in (0, 1)) for rank, one in enumerate(statuses))

    def ended(self, statuses: Sequence[int | None]) -> int:
        """How many ranks have ended so, or wrongly."""
        return self.wrong(statuses) + sum(one == self._wanted for one in statuses[: self.most])

    @property
    def _wanted(self) -> int:
        return {**ENDINGS, **SIGNALS}[self.ending]


def cases() -> Iterator[Case]:
    """All of them."""
    for ending in SIGNALS:
        for state in BUSY:
            yield Case(state, ending)
        for state in ("waiting", "leaving"):
            yield Case(state, ending, fallen_back=True)
    for ending in (*ENDINGS, *SIGNALS):
        for state in FREE:
            for destroy in (False,) if state == "left" else (False, True):
                for fallen_back in (False, True):
                    yield Case(state, ending, destroy, fallen_back)
