# SPDX-License-Identifier: Apache-2.0
"""The thread that contributes in place of a late program, once enough other programs wait.

Only the late rank itself decides. It contributes when two things hold: its deadline is over, and at least `least`
programs have said that they have contributed. A program that has contributed says so when its deadline is over, or at
once if a program was missing in the sum before. So a pause of all ranks makes nobody late.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from inagg.errors import InaggError
from inagg.late.roll_call import RollCall, StoreFailedError
from inagg.late.sums import BucketSum, BucketSums
from inagg.late.turns import Bucket, Turn

_log = logging.getLogger(__name__)

# Pauses between two looks for programs that wait at a turn: a twentieth of the time since the first one.
_PART = 20
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.1
_RETRY_S = 1.0  # after an error
_END_S = 3.0  # how long the end waits for a call of the store


class StandIn:
    """Stands in for one rank's program until `close`.

    Args:
        least: how many programs take part in each sum at least.
        most_behind: steps; a program that is further behind is waited for.
    """

    def __init__(self, sums: BucketSums, roll_call: RollCall, *, least: int, most_behind: int) -> None:
        self._sums = sums
        self._roll_call = roll_call
        self._least = least
        self._most_behind = most_behind
        self._asked: tuple[Turn, float] | None = (
            None  # a turn, and when this rank first asked who waits at it
        )
        self._ask_again_at = 0.0  # at this turn
        self._closed = False  # guarded by sums.changed
        self._thread = threading.Thread(target=self._run, name="inagg-stand-in", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. Sums that it has begun go on."""
        with self._sums.changed:
            self._closed = True
            self._sums.changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(_END_S)
        if (missing := self._sums.unclaimed_steps) > 0:
            _log.warning(
                "inagg: rank %d: this rank ends with fewer steps than the others, by %d: its weights are not theirs. "
                "All ranks must make the same number of steps: give each the same number of batches, and skip none",
                self._sums.group.rank(),
                missing,
            )

    def _run(self) -> None:
        rank = self._sums.group.rank()
        while (act := self._wait()) is not None:
            try:
                act()
            except InaggError:
                return  # the program's next sum raises it too
            except StoreFailedError as error:
                if not self._closed:
                    _log.warning(
                        "inagg: rank %d: torch's store failed (%s). From now on this rank contributes only when its "
                        "program does, and the others wait for it",
                        rank,
                        error,
                    )
                return
            except Exception as error:  # out of memory, for example
                _log.warning(
                    "inagg: rank %d: could not contribute in place of the late program (%s: %s). The others wait; the "
                    "next try is in %g s",
                    rank,
                    type(error).__name__,
                    error,
                    _RETRY_S,
                )
                self._ask_again_at = time.monotonic() + _RETRY_S

    def _wait(self) -> Callable[[], None] | None:
        """Wait until something is to be done. None: the end."""
        with self._sums.changed:
            while not self._closed and not self._sums.ended:
                due = [*map(self._say_due, self._sums.open.values()), self._ask_due()]
                known = [one for one in due if one is not None]
                at, act = min(known, key=lambda one: one[0], default=(None, None))
                pause_s = None if at is None else at - time.monotonic()
                if pause_s is not None and pause_s <= 0:
                    return act
                self._sums.changed.wait(pause_s)
            return None

    def _say_due(self, one: BucketSum) -> tuple[float, Callable[[], None]] | None:
        if one.said or self._sums.begun is None:
            return None
        deadline = 0.0
        if not self._sums.incomplete:
            own = self._sums.arrivals.deadline(one.turn.position, one.arrived_s)
            if own is None:
                return None
            deadline = own
        return self._sums.begun[1] + deadline, partial(self._say, one)

    def _say(self, one: BucketSum) -> None:
        one.said = True
        self._roll_call.here(one.turn, one.bucket)

    def _ask_due(self) -> tuple[float, Callable[[], None]] | None:
        turns, begun = self._sums.turns, self._sums.begun
        bucket = turns.expected
        if (
            bucket is None
            or begun is None
            or begun[0] != turns.group.step
            or turns.behind > self._most_behind
        ):
            return None
        deadline = self._sums.arrivals.deadline(turns.group.position)
        if turns.behind > 0:
            deadline = 0.0  # the program is known to be late
        if deadline is None:
            return None
        at = begun[1] + deadline
        if self._asked is not None and self._asked[0] == turns.group:
            at = max(at, self._ask_again_at)
        return at, partial(self._ask, turns.group, bucket)

    def _ask(self, turn: Turn, bucket: Bucket) -> None:
        now = time.monotonic()
        if self._asked is None or self._asked[0] != turn:
            self._asked = turn, now
        waited_s = now - self._asked[1]
        self._ask_again_at = now + min(_LONGEST_PAUSE_S, max(_LEAST_PAUSE_S, waited_s / _PART))
        if self._roll_call.count(turn, bucket) >= self._least:
            self._sums.stand_in(turn)
