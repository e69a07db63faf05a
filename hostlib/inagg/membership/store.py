# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a group tell each other while the group is made, through torch's store."""

import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store

from inagg.errors import ConfigurationError, InaggError, name_ranks

# Between looks for a key. Torch's own wait neither handles signals nor learns that another rank has failed.
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.1

Check = Callable[[], None]


def tell_all(
    store: Store,
    name: str,
    rank: int,
    ranks: Sequence[int],
    mine: Any,
    timeout: timedelta,
    check: Check = lambda: None,
) -> list[Any]:
    """What each of `ranks` gave as `mine`, in their order; each calls it once with this name. Waits for all of them.

    mine: what JSON can hold; tuples arrive as lists. check: see `wait_for`.

    Raises:
        DistStoreError: ranks have not called it within `timeout`; it names them. Torch's own, as gloo raises it.
    """
    store.set(f"{name}/{rank}", json.dumps(mine))
    keys = [f"{name}/{other}" for other in ranks]
    return [json.loads(told) for told in wait_for(store, keys, ranks, timeout, check)]


def wait_for(
    store: Store,
    keys: list[str],
    ranks: Sequence[int],
    timeout: timedelta,
    check: Check = lambda: None,
) -> list[bytes]:
    """The values of `keys`, each set by one of `ranks`.

    check: called now and then while a key is missing; what it raises ends the wait, unless the key is there by then.

    Raises:
        DistStoreError: as `tell_all`.
    """
    end, pause = time.monotonic() + timeout.total_seconds(), _FIRST_PAUSE_S
    values = []
    # One key a request: where only small packets get through, an answer with the values of all would never come.
    for index, key in enumerate(keys):
        while not store.check([key]):
            try:
                check()
            except InaggError:
                if store.check([key]):  # the rank that has failed since had told this before
                    break
                raise
            if time.monotonic() >= end:
                missing = [ranks[late] for late in range(index, len(keys)) if not store.check([keys[late]])]
                raise DistStoreError(
                    f"{name_ranks(missing or [ranks[index]])} did not come within {timeout.total_seconds():g} s to "
                    "make a group with this rank: dead, late, or elsewhere. Every rank must call new_group for the "
                    "same groups, in the same order."
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        values.append(store.get(key))
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
