# SPDX-License-Identifier: Apache-2.0
"""Gives a group keys that no earlier group had, if the same ranks make a group again under the same name.

torch names a group that only its members create (``use_local_synchronization``) after its ranks, and the world always
alike. Its store keeps all keys. So each rank counts in the store how often it has made a group under a name; the count
is the group's generation, and the keys of each generation have their own prefix.

The counts differ after a rank has failed before it counted, or was restarted. A rank that begins then takes the newest
generation that another rank has begun. A rank that waits in an older one sees that a newer one has begun.
"""

from torch.distributed.distributed_c10d import PrefixStore, Store


class Generation:
    """A rank's attempt to make a group.

    `number` counts from 1. `store` has the keys of this generation.

    Args:
        store: keys that are shared by all ranks, and all generations, of the group.
        rank, size: this process's rank, and the number of ranks. Groups of different sizes have separate counts.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._counts = PrefixStore(f"ranks-{size}", store)
        self.number = int(self._counts.add(f"made/{rank}", 1))
        while self.superseded():
            self.number = int(self._counts.add(f"made/{rank}", 1))
        self._counts.set(_begun(self.number), "")
        self.store: Store = PrefixStore(f"generation-{self.number}", self._counts)

    def superseded(self) -> bool:
        """Whether a rank has begun the next generation."""
        return bool(self._counts.check([_begun(self.number + 1)]))


def _begun(number: int) -> str:
    return f"begun/{number}"
