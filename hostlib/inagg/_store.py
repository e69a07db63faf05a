# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a group tell each other while the group is made, through torch's store."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from inagg.errors import ConfigurationError, name_ranks


def tell_all(
    store: Store, name: str, rank: int, ranks: Sequence[int], mine: Any, timeout: timedelta
) -> list[Any]:
    """What each of `ranks` gave as `mine`, in their order; each calls it once with this name. Waits for all of them.

    mine: what JSON can hold; tuples arrive as lists.

    Raises:
        DistStoreError: ranks have not called it within `timeout`; it names them. Torch's own, as gloo raises it.
    """
    store.set(f"{name}/{rank}", json.dumps(mine))
    return [
        json.loads(told) for told in wait_for(store, [f"{name}/{other}" for other in ranks], ranks, timeout)
    ]


def wait_for(store: Store, keys: list[str], ranks: Sequence[int], timeout: timedelta) -> list[bytes]:
    """The values of `keys`, each set by one of `ranks`.

    Raises:
        DistStoreError: as `tell_all`.
    """
    try:
        store.wait(keys, timeout)
    except DistStoreError as error:
        missing = [rank for key, rank in zip(keys, ranks, strict=True) if not store.check([key])]
        if not missing:
            raise
        raise DistStoreError(
            f"{name_ranks(missing)} did not come within {timeout.total_seconds():g} s to make a group with this rank: "
            "dead, late, or elsewhere. Every rank must call new_group for the same groups, in the same order."
        ) from error
    values: list[bytes] = store.multi_get(keys)
    return values


def agree_on_members(store: Store, rank: int, members: list[int], timeout: timedelta) -> None:
    """Find that ranks mean different groups: they have called new_group in different orders.

    Groups without a rank in common may have this store at the same time, as when each half of a world divides itself.

    rank: this process's in the world, one of `members`.

    Raises:
        ConfigurationError: one of them makes a group of other ranks here.
        DistStoreError: one of them makes none within `timeout`.
    """
    told = tell_all(store, "members", rank, members, members, timeout)
    others = next((found for found in told if found != members), None)
    if others is None:
        return
    for other in others:  # they may wait for a rank that never comes
        store.set(f"members/{other}", json.dumps(members))
    raise ConfigurationError(
        f"this rank makes a group of the ranks {members} where another makes one of {others}. Every rank must call "
        "new_group for the same groups in the same order, also for those that it is no member of."
    )
