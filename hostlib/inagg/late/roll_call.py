# SPDX-License-Identifier: Apache-2.0
"""How a rank learns that other programs wait for it: they say so in torch's store, once they have waited too long.

In a step in which no rank is late, nothing is written or read.
"""

from torch.distributed.distributed_c10d import Store

from inagg.late.turns import Bucket, Turn
from inagg.membership.store import own_connection


class StoreFailedError(Exception):
    """The store cannot be used any more."""


class RollCall:
    """Programs that have contributed to a turn. One thread uses it. All methods raise StoreFailedError.

    store: keys that only the group's ranks share.
    """

    def __init__(self, store: Store) -> None:
        self._store = own_connection(store)
        self._used: dict[str, int] = {}  # key -> step

    def here(self, turn: Turn, bucket: Bucket) -> None:
        """Say that this rank's program has contributed."""
        self._add(turn, bucket, 1)

    def count(self, turn: Turn, bucket: Bucket) -> int:
        """How many have said so, with the same bucket."""
        return self._add(turn, bucket, 0)

    def _add(self, turn: Turn, bucket: Bucket, amount: int) -> int:
        key = f"late/{turn.step}/{turn.position}/{bucket.digest}"
        try:
            count: int = self._store.add(key, amount)
            self._used[key] = turn.step
            self._delete_before(turn.step - 1)
        except RuntimeError as error:
            raise StoreFailedError(str(error)) from error
        return count

    def _delete_before(self, step: int) -> None:
        # All ranks have contributed to the step before, so none reads keys of earlier ones. Each deletes those that it
        # has used, because one may write after another has deleted.
        for old in [key for key, used in self._used.items() if used < step]:
            self._store.delete_key(old)
            del self._used[old]
