# SPDX-License-Identifier: Apache-2.0
"""The collectives that a rank has called on its group, for ranks to compare (docs/protocol.md, 7.1).

A collective is noted as a short text, such as ``all_reduce(SUM, float32[1000])``. The text has what all ranks must
agree on, and nothing that may differ by rank. Every sum through the switch carries the digest of all texts so far, so
it reveals any earlier disagreement at once. Heartbeats carry the texts themselves when the controller asks for them.
Messages from one rank to another (send, recv) are not noted.
"""

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from inagg_contract.documents import RankTraffic, Waits

# Number of texts that are kept: more than the collectives by which one rank can be ahead of another, and more than
# those that begin between two heartbeats.
REMEMBERED = 4096

NO_WAITS = Waits(sums=0, waited_s=0.0)


@dataclass(frozen=True, slots=True)
class Report:
    """What a heartbeat says about a rank's collectives.

    begun: the number of the last collective. asked: the first and last number that the controller has asked for.
    calls: these collectives, as (digest, text); the first ones are missing if they have been forgotten. waits: how many
    sums through the switch are done, and how long this rank waited for others to begin them. chunks: of the server in
    this process, by where they were summed; None if it does not serve the job. switch_silent: the switch through which
    its sums once went does not answer. traffic: what this rank has sent and received.
    """

    begun: int
    asked: tuple[int, int] | None = None
    calls: Sequence[tuple[int, str]] = ()
    waits: Waits = NO_WAITS
    chunks: Mapping[str, int] | None = None
    switch_silent: bool = False
    traffic: RankTraffic | None = None


class Journal:
    """The collectives that one rank has begun on one group, numbered from 1. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()  # guards what follows
        self._begun = 0
        self._digest = 0
        self._recent: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)

    def begin(self, text: str) -> int:
        """Note a collective. Returns the digest (32 bits) of its text and of all texts before it."""
        with self._lock:
            self._begun += 1
            self._digest = zlib.crc32(text.encode(), self._digest)
            self._recent.append((self._digest, text))
            return self._digest

    def report(self, asked: tuple[int, int] | None) -> Report:
        """The number of collectives; and those numbered asked[0] to asked[1], if all of these have begun."""
        with self._lock:
            if asked is None or asked[1] > self._begun:
                return Report(self._begun)
            behind = self._begun - asked[1]
            count = min(asked[1] - asked[0] + 1, len(self._recent) - behind)
            first = len(self._recent) - behind - count
            calls = [self._recent[index] for index in range(first, first + max(count, 0))]
            return Report(self._begun, asked, calls)

    def find(self, digest: int) -> int:
        """The number of the last collective with a digest (see `begin`); 0 if it is forgotten."""
        with self._lock:
            behind = (behind for behind, (found, _) in enumerate(reversed(self._recent)) if found == digest)
            return next((self._begun - count for count in behind), 0)

    def text(self, number: int) -> str:
        """The text of a collective; empty if it is forgotten."""
        with self._lock:
            place = number - self._begun + len(self._recent) - 1
            return self._recent[place][1] if 0 <= place < len(self._recent) else ""

    def last(self) -> tuple[int, str]:
        """Number and text of the last collective; (0, "") before the first."""
        with self._lock:
            return (self._begun, self._recent[-1][1]) if self._recent else (0, "")
