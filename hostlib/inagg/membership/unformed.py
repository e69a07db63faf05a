# SPDX-License-Identifier: Apache-2.0
"""The membership of a group that has no members: its ranks have not formed it yet, or could not form it again."""

from typing import Any, Literal

from inagg.errors import InaggError, JobError
from inagg.sums.journal import Journal


class Unformed:
    """What `Session` is for a group of several ranks: what a process group needs of it. Every collective fails.

    Args:
        why: the group has no members, and what to do.
        rank: for the error.
    """

    path: Literal["none"] = "none"

    def __init__(self, why: str, rank: int) -> None:
        self.journal = Journal()
        self._why = why
        self._rank = rank

    @property
    def failure(self) -> InaggError:
        return JobError(self._why, rank=self._rank)

    def diagnose(self) -> InaggError:
        return self.failure

    def fail(self, _reason: str) -> None:
        """There is nothing to fail."""

    def leave(self, _cause: str | None = None, _since: float = 0.0) -> None:
        """There is nothing to leave."""

    def close(self) -> None:
        """There is nothing to close."""

    def catch_up(self) -> None:
        """There are no others."""

    def stats(self) -> dict[str, Any]:
        return {"rank": self._rank, "aggregation": self.path}
