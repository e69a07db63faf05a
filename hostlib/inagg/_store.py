# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a group tell each other while the group is made, through torch's store."""

import json
from collections.abc import Sequence
from typing import Any

from torch.distributed.distributed_c10d import Store

from inagg.errors import ConfigurationError


def tell_all(store: Store, name: str, rank: int, ranks: Sequence[int], mine: Any) -> list[Any]:
    """What each of `ranks` gave as `mine`, in their order; each calls it once with this name. Waits for all of them.

    mine: what JSON can hold; tuples arrive as lists.

    Raises what `store` raises when a rank does not call it in time: torch.distributed.DistStoreError.
    """
    store.set(f"{name}/{rank}", json.dumps(mine))
    return [json.loads(told) for told in store.multi_get([f"{name}/{other}" for other in ranks])]


def agree_on_members(store: Store, rank: int, members: list[int]) -> None:
    """Find that ranks mean different groups: they have called new_group in different orders.

    Groups without a rank in common may have this store at the same time, as when each half of a world divides itself.

    rank: this process's in the world, one of `members`.

    Raises:
        ConfigurationError: one of them makes a group of other ranks here.
    """
    told = tell_all(store, "members", rank, members, members)
    others = next((found for found in told if found != members), None)
    if others is None:
        return
    for other in others:  # they may wait for a rank that never comes
        store.set(f"members/{other}", json.dumps(members))
    raise ConfigurationError(
        f"this rank makes a group of the ranks {members} where another makes one of {others}. Every rank must call "
        "new_group for the same groups in the same order, also for those that it is no member of."
    )
