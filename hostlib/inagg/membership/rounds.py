# SPDX-License-Identifier: Apache-2.0
"""Sums for a job without switches and servers: its ranks add in rounds, over connections of their own
(docs/protocol.md, 5.8)."""

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from inagg._core import JobShape
from inagg._core import Rounds as RoundsCore
from inagg.membership.assembly import describe

_log = logging.getLogger(__name__)

# If a rank has died, the controller knows it within this time, and names it. Broken connections alone do not.
_GRACE_S = 2.0
# A round whose results are here ends at once; another one may wait for other ranks.
_ENDING_S = 0.25
_BROKEN_S = 5.0


class Reducing(Protocol):
    """What does all-reduces for the ranks of a job. All ranks call `reduce` for the same arrays in the same order."""

    def reduce(self, array: NDArray[Any], operation: Literal["or", "max", "sum"]) -> None:
        """Replace an array of integers by what comes of all ranks'. Raises RuntimeError if a connection breaks."""

    def break_off(self) -> None:
        """Have reductions under way, and later ones, fail at all ranks."""

    def close(self) -> None:
        """End the connections."""


class Rounds:
    """One rank's rounds on one way, and their thread. It owns `group`, which all ranks of the job have made.

    next_chunks: by slot, the chunk that all ranks sum next.
    """

    def __init__(self, job: JobShape, next_chunks: Sequence[int], group: Reducing) -> None:
        self.core = RoundsCore(job, next_chunks)
        self._group = group
        self._made_by = os.getpid()
        self._closing = False
        self._broken: tuple[float, str] | None = None  # when, and why
        self._thread = threading.Thread(target=self._run, name="inagg-rounds", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why there are no more rounds though nobody has closed them; None if there are, or that has just happened."""
        broken = self._broken
        return None if broken is None or time.monotonic() - broken[0] < _GRACE_S else broken[1]

    def close(self) -> None:
        """End the rounds. The worker gets no more results from them. Closing twice changes nothing."""
        if self._closing or self._made_by != os.getpid():
            return
        self._closing = True
        self.core.close()
        self._thread.join(_ENDING_S)
        if self._thread.is_alive():
            self._group.break_off()
            self._thread.join(_BROKEN_S)
        self._group.close()

    def _run(self) -> None:
        try:
            while self.core.wait():
                self._round()
        except Exception as error:
            if not self._closing:
                _log.debug("the rounds over gloo have ended: %s", describe(error))
                self._broken = time.monotonic(), describe(error)

    def _round(self) -> None:
        agreed = self.core.offer()
        self._group.reduce(agreed, "or")
        peaks, sums = self.core.contributions(agreed)
        self._group.reduce(peaks, "max")
        if sums.size:
            self._group.reduce(sums, "sum")
        self.core.finish(agreed, peaks, sums)
