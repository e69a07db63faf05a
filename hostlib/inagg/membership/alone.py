# SPDX-License-Identifier: Apache-2.0
"""The membership of a group of one rank: it sums alone, so there is no job to join, to watch or to leave.

Nor does it use torch's store, which may have ended with another rank.
"""

import os
from typing import Any, Literal

from inagg.errors import InaggError, JobError
from inagg.membership.session import FORKED
from inagg.sums.journal import Journal


class Alone:
    """What `Session` is for a group of several ranks: what a process group needs of it. Any thread may use it."""

    path: Literal["local"] = "local"

    def __init__(self) -> None:
        self.journal = Journal()  # numbers the collectives; nobody compares it
        self._made_by = os.getpid()
        self._ending: str | None = None

    @property
    def failure(self) -> InaggError | None:
        """Why the group does no collectives; None if it does. A forked child is not a member, as in other groups."""
        if os.getpid() != self._made_by:
            return JobError(FORKED, rank=0)
        return None if self._ending is None else JobError(self._ending, rank=0)

    def diagnose(self) -> InaggError | None:
        return self.failure

    def fail(self, reason: str) -> None:
        """End the group. The first reason is kept."""
        self._ending = self._ending or reason

    def leave(self, _cause: str | None = None, _since: float = 0.0) -> None:
        self.close()

    def close(self) -> None:
        if os.getpid() == self._made_by:
            self.fail("this process group has been destroyed")

    def catch_up(self) -> None:
        """There are no others."""

    def stats(self) -> dict[str, Any]:
        return {"rank": 0, "aggregation": self.path}
