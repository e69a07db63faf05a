# SPDX-License-Identifier: Apache-2.0
"""How a rank learns that other programs wait for it: they say so in torch's store, once they have waited too long.

In a step in which no rank is late, nothing is written or read.
"""

from torch.distributed.distributed_c10d import Store

from inagg.late.turns import Bucket, Turn


class RollCall:
    """Programs that have contributed to a turn. One thread uses it.

    store: keys that only the group's ranks share.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._used: dict[str, int] = {}  # key -> step

    def here(self, turn: Turn, bucket: Bucket) -> None:
        """Say that this rank's program has contributed."""
        self._add(turn, bucket, 1)

    def count(self, turn: Turn, bucket: Bucket) -> int:
        """How many have said so, with the same bucket."""
        return self._add(turn, bucket, 0)

    def _add(self, turn: Turn, bucket: Bucket, amount: int) -> int:
        key = f"late/{turn.step}/{turn.position}/{bucket.digest}"
        count: int = self._store.add(key, amount)
        self._used[key] = turn.step
        # All ranks have contributed to the step before, so none reads keys of earlier ones. Each deletes those that it
        # has used, because one may write after another has deleted.
        for old in [key for key, step in self._used.items() if step < turn.step - 1]:
            self._store.delete_key(old)
            del self._used[old]
        return count
