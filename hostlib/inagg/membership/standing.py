# SPDX-License-Identifier: Apache-2.0
"""The state of a rank in its job: a member, ended, or closed.

    MEMBER --the job failed, or this rank gave it up--> ENDED --close--> CLOSED
    MEMBER --close----------------------------------------------------> CLOSED

The first ending is kept: later errors of this rank give it as the reason.
"""

import threading
from dataclasses import dataclass
from enum import IntEnum

from inagg.errors import CollectiveTimeoutError, InaggError, JobError, JobRank
from inagg.membership.heartbeat import Failure


class Phase(IntEnum):
    MEMBER = 0
    ENDED = 1
    CLOSED = 2


@dataclass(frozen=True, slots=True)
class GaveUp:
    """This rank has ended the job for all ranks. elements, timeout_s: of the sum that took too long, if that is why."""

    reason: str
    elements: int | None = None
    timeout_s: float = 0.0

    def error(self, who: JobRank, chunk: int | None) -> InaggError:
        """The error that `who` raises. chunk: its oldest chunk without a result; None without one."""
        if self.elements is None:
            return JobError(self.reason, **who._asdict(), chunk=chunk)
        return CollectiveTimeoutError(self.elements, timeout_s=self.timeout_s, **who._asdict(), chunk=chunk)


Ending = Failure | GaveUp


@dataclass(frozen=True, slots=True)
class State:
    """ending: why the job has ended for this rank, if it has."""

    phase: Phase = Phase.MEMBER
    ending: Ending | None = None


class Standing:
    """Holds the state of one rank. Any thread may read and change it."""

    def __init__(self) -> None:
        # Guards the transition. Reading needs no lock, because a State is replaced in one step.
        self._lock = threading.Lock()
        self._state = State()

    @property
    def state(self) -> State:
        return self._state

    def become(self, phase: Phase, ending: Ending | None = None) -> bool:
        """Change to a later phase. False if that was reached before: then another caller does its work."""
        with self._lock:
            if phase <= self._state.phase:
                return False
            self._state = State(phase, self._state.ending or ending)
            return True
