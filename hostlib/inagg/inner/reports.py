# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a group without a job report to each other, in torch's store. In a job heartbeats carry it."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch.distributed.distributed_c10d import Store

from inagg.membership.store import own_connection

_log = logging.getLogger(__name__)

_EVERY_S = 0.5

Figures = Mapping[str, Any]


class Reports:
    """The reports of a group's ranks.

    Args:
        store: keys that only the group's ranks share.
        own: returns this rank's report.
    """

    def __init__(self, store: Store, rank: int, size: int, own: Callable[[], Figures]) -> None:
        self._store = own_connection(
            store
        )  # because a collective must not wait for a thread that waits in `store`
        self._rank, self._size = rank, size
        self._own = own
        self._next_at = 0.0

    def publish(self, now: bool = False) -> None:
        """Tell the others, unless it has just been done. Cheap enough to be called with each collective."""
        time_s = time.monotonic()
        if time_s < self._next_at and not now:
            return
        self._next_at = time_s + _EVERY_S
        try:
            self._store.set(_key(self._rank), json.dumps(self._own()))
        except RuntimeError as error:  # the process that serves the store has ended
            self._next_at = float("inf")
            _log.debug("rank %d reports no longer: %s", self._rank, error)

    def read(self) -> dict[int, dict[str, Any]]:
        """The last report of each rank; empty until all have one."""
        keys = [_key(rank) for rank in range(self._size)]
        try:
            if not self._store.check(keys):
                return {}
            return {rank: json.loads(self._store.get(key)) for rank, key in enumerate(keys)}
        except RuntimeError as error:
            _log.debug("rank %d cannot read reports: %s", self._rank, error)
            return {}


def _key(rank: int) -> str:
    return f"report/{rank}"
