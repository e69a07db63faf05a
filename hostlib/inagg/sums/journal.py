# SPDX-License-Identifier: Apache-2.0
"""What a rank has called on its group, for ranks to compare (docs/protocol.md, 7.1).

A collective is noted as a short text, such as ``all_reduce(SUM, float32[1000])``, that must be the same at all ranks:
it has what they must agree on, and nothing that may differ by rank. The digest of all texts so far goes along with
every sum through the switch, so a disagreement anywhere before is noticed there at once; the texts themselves are told
with heartbeats when the controller asks. What goes from one rank to another (send, recv) is not noted.
"""

import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

# Collectives whose texts are kept: more than a rank is ahead of another, and than are begun between two heartbeats.
REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Report:
    """What a heartbeat tells of a journal.

    begun: the number of the last collective. asked: the range of numbers that `calls` answers, as (digest, text); the
    first ones are missing if they have been forgotten. sums, waited_s: sums through the switch that are done, and
    seconds waited for other ranks to begin them.
    """

    begun: int
    asked: tuple[int, int] | None = None
    calls: Sequence[tuple[int, str]] = ()
    sums: int = 0
    waited_s: float = 0.0


class Journal:
    """The collectives that one rank has begun on one group, numbered from 1. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards what follows
        self._begun = 0
        self._digest = 0
        self._recent: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)

    def begin(self, text: str) -> int:
        """Note a collective; returns the digest (32 bits) of its text and of all before it."""
        with self._lock:
            self._begun += 1
            self._digest = zlib.crc32(text.encode(), self._digest)
            self._recent.append((self._digest, text))
            return self._digest

    def report(self, asked: tuple[int, int] | None) -> Report:
        """The number of collectives, and those numbered asked[0] to asked[1] if all of them have begun."""
        with self._lock:
            if asked is None or asked[1] > self._begun:
                return Report(self._begun)
            behind = self._begun - asked[1]
            count = min(asked[1] - asked[0] + 1, len(self._recent) - behind)
            first = len(self._recent) - behind - count
            calls = [self._recent[index] for index in range(first, first + max(count, 0))]
            return Report(self._begun, asked, calls)

    def last(self) -> tuple[int, str]:
        """Number and text of the last collective; (0, "") before the first."""
        with self._lock:
            return (self._begun, self._recent[-1][1]) if self._recent else (0, "")
