# SPDX-License-Identifier: Apache-2.0
"""The cases of test_exit.py and hunt.py: a state of the group, and a way to end. states.py is the program."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PROGRAM = Path(__file__).with_name("states.py")
RANKS = 2
# In these states rank 0 waits, so only a signal can end it.
BUSY = ("before_join", "joining", "probing", "waiting", "leaving")
FREE = ("joined", "summing", "failed", "left")
# Way to end -> exit status of rank 0. A signal without a Python handler kills the process at once.
ENDINGS = {"fall": 0, "exception": 1, "exit": 3, "fork": 3}
SIGNALS = {"sigint": -2, "sigterm": -15, "sigterm-handled": 3}


class Case(NamedTuple):
    """destroy: whether the group is destroyed before the end; fallen_back: whether gloo does its sums; aggregation:
    what else does them."""

    state: str
    ending: str
    destroy: bool = False
    fallen_back: bool = False
    aggregation: str = "leased"

    @property
    def state_name(self) -> str:
        """The state as tables show it."""
        way = "" if self.aggregation == "leased" else f"-{self.aggregation}"
        return self.state + "-destroyed" * self.destroy + "-fallen-back" * self.fallen_back + way

    @property
    def name(self) -> str:
        """The case as names of logs show it."""
        return f"{self.state_name}-{self.ending}"

    @property
    def arguments(self) -> list[str]:
        """Arguments of the program."""
        return [self.state, self.ending, *["destroy"] * self.destroy]

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the program, besides a launcher's variables."""
        return {"INAGG_AGGREGATION": self.aggregation} | (
            {"INAGG_FALLBACK": "inner"} if self.fallen_back else {}
        )

    @property
    def most(self) -> int:
        """The number of ranks that end this way, if no rank fails earlier because another one has ended."""
        return 1 if self.state in BUSY else RANKS

    def wrong(self, statuses: Sequence[int | None]) -> int:
        """The number of ranks that ended wrongly. Rank 0 must end with the status of the case. Other ranks may also
        end with status 0 or 1. All must end."""
        wanted = self._wanted
        return sum(one != wanted and (rank == 0 or one not in (0, 1)) for rank, one in enumerate(statuses))

    def ended(self, statuses: Sequence[int | None]) -> int:
        """The number of ranks that ended in the way of the case, or wrongly."""
        return self.wrong(statuses) + sum(one == self._wanted for one in statuses[: self.most])

    @property
    def _wanted(self) -> int:
        return {**ENDINGS, **SIGNALS}[self.ending]


def cases() -> Iterator[Case]:
    """All cases."""
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
        yield Case("changing", ending)
        # The ranks' processes are servers.
        yield Case("summing", ending, aggregation="server")
        yield Case("crossed", ending, aggregation="server")
