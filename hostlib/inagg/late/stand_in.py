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
from inagg.late.roll_call import RollCall
from inagg.late.sums import BucketSum, BucketSums
from inagg.late.turns import Bucket, Turn

_log = logging.getLogger(__name__)

_ASKS = 20  # in a deadline's time
_LEAST_PAUSE_S = 0.002
_PAUSE_S = 0.01  # while there is no deadline
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
        self._ask_again_at = 0.0
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

    def _run(self) -> None:
        try:
            while (act := self._wait()) is not None:
                act()
        except InaggError:
            pass  # the program's next sum raises it too
        except RuntimeError as error:  # torch's store
            if not self._closed:
                _log.warning(
                    "inagg: rank %d: torch's store failed (%s). From now on this rank contributes only when its "
                    "program does, and the others wait for it",
                    self._sums.group.rank(),
                    error,
                )

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
        pause_s = _PAUSE_S if deadline is None else max(_LEAST_PAUSE_S, deadline / _ASKS)
        if turns.behind > 0:
            deadline = 0.0  # the program is known to be late
        if deadline is None:
            return None
        at = max(begun[1] + deadline, self._ask_again_at)
        return at, partial(self._ask, turns.group, bucket, pause_s)

    def _ask(self, turn: Turn, bucket: Bucket, pause_s: float) -> None:
        if self._roll_call.count(turn, bucket) >= self._least:
            self._sums.stand_in(turn)
        else:
            self._ask_again_at = time.monotonic() + pause_s
