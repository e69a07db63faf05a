# SPDX-License-Identifier: Apache-2.0
"""Makes the process groups leave their jobs when the program ends."""

import gc
import logging
import sys
import time
import weakref
from typing import Protocol

_log = logging.getLogger(__name__)

_LONGEST_CAUSE = 300  # characters; the controller takes 2000


class Group(Protocol):
    """A group that must leave its job: `inagg.process_group.ProcessGroup`."""

    made: float  # when, on any clock of this process

    def leave(self, cause: str | None, since: float) -> None: ...

    @property
    def failed(self) -> bool: ...


# The groups that have been made and not been freed.
living: "weakref.WeakSet[Group]" = weakref.WeakSet()


def leave_all() -> None:
    """Leave the jobs of all living groups, and end their inner groups.

    A program may end without destroying its groups. The other ranks then learn at once that this rank has left.
    And no gloo thread may return to an interpreter that has ended: that would abort the process.
    """
    cause, since = _uncaught(), time.monotonic()
    # In the same order at all ranks: in each job the last ones wait for others (membership/own_server.py).
    for group in sorted(living, key=lambda group: group.made):
        try:
            group.leave(cause, since)
        except BaseException:  # a second Ctrl-C included: the other groups still leave
            _log.warning("inagg: at the end of the program, a group failed to leave its job", exc_info=True)
    if cause is not None or any(group.failed for group in living):
        # The launcher waits for this process to end before it restarts the job. On a busy machine the interpreter's
        # last garbage collection takes seconds, because torch has many objects.
        gc.freeze()


def _uncaught() -> str | None:
    """The exception that ends the program; None without one. An interactive session continues after an exception."""
    error = getattr(sys, "last_value", None)
    if error is None or hasattr(sys, "ps1"):
        return None
    text = f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
    return f"its program ended with {text[:_LONGEST_CAUSE]}"
