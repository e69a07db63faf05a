# SPDX-License-Identifier: Apache-2.0
"""Exchanges values through torch's store, between the ranks that make a group."""

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store

from inagg.errors import ConfigurationError, InaggError
from inagg_contract.ranks import name_ranks

# Between two looks for a key. Torch's own wait neither handles signals nor notices that another rank has failed.
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.1

# A value that no key has, so that a comparison with it changes nothing.
_NEVER_SET = "inagg compares"

Check = Callable[[], None]

NEW_GROUP = "Every rank must call new_group for the same groups, in the same order."


def own_connection(store: Store) -> Store:
    """The same keys over another connection, which does not wait while a thread of the program waits in `store`.

    The store itself where torch has no other connection: before 2.8, for stores written in Python, and at a failure.
    """
    try:
        # Fails at once if the server has ended, to which torch would try to connect for a minute.
        store.check([_NEVER_SET])
        return store.clone()  # type: ignore[no-any-return, attr-defined]  # torch's stub lacks it
    except (AttributeError, NotImplementedError, RuntimeError):
        return store


def exchange(
    store: Store,
    name: str,
    rank: int,
    ranks: Sequence[int],
    mine: Any,
    timeout: timedelta,
    check: Check = lambda: None,
    advice: str = NEW_GROUP,
) -> list[Any]:
    """Wait until each of `ranks` has called this with this name. Returns the values of `mine`, in the order of `ranks`.

    A rank may use a name once. mine: a value that JSON can hold; tuples arrive as lists. check, advice: see `wait_for`.

    Raises:
        DistStoreError: ranks have not called it within `timeout`; it names them. Torch's class, as gloo raises it.
    """
    store.set(f"{name}/{rank}", json.dumps(mine))
    keys = [f"{name}/{other}" for other in ranks]
    return [json.loads(value) for value in wait_for(store, keys, ranks, timeout, check, advice)]


def wait_for(
    store: Store,
    keys: list[str],
    ranks: Sequence[int],
    timeout: timedelta,
    check: Check = lambda: None,
    advice: str = NEW_GROUP,
) -> list[bytes]:
    """Wait for the values of `keys`, each set by the rank at the same place of `ranks`.

    check: called repeatedly while a key is missing. If it raises an InaggError and the key is still missing, the wait
    ends with that error. advice: what to do if ranks do not come, for the error.

    Raises:
        DistStoreError: as `exchange`.
    """
    end, pause = time.monotonic() + timeout.total_seconds(), _FIRST_PAUSE_S
    values = []
    # One key a request: where only small packets pass, an answer with all values would never arrive.
    for index, key in enumerate(keys):
        while not store.check([key]):
            try:
                check()
            except InaggError:
                if store.check([key]):  # set by the failed rank before it failed
                    break
                raise
            if time.monotonic() >= end:
                missing = [ranks[late] for late in range(index, len(keys)) if not store.check([keys[late]])]
                raise DistStoreError(
                    f"{name_ranks(missing or [ranks[index]])} did not come within {timeout.total_seconds():g} s to "
                    f"make a group with this rank: dead, late, or elsewhere. {advice}"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        values.append(value_of(store, key))
    return values


def value_of(store: Store, key: str) -> bytes:
    """The value of a key that exists.

    To get a value torch's client first waits for its key, for up to the store's timeout, 30 minutes by default: also if
    the key exists, and the process that serves the store stops now. A comparison is answered at once or not at all.

    Raises:
        DistNetworkError: the server does not answer any more.
    """
    if server_of(store) is None:
        return store.get(key)
    return store.compare_set(key, _NEVER_SET, _NEVER_SET)


def server_of(store: Store) -> TCPStore | None:
    """The client of the process that serves a store; None without one."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store if isinstance(store, TCPStore) else None


def agree_on_members(store: Store, rank: int, members: list[int], timeout: timedelta) -> None:
    """Check that all of `members` make the same group. They do not if they have called new_group in different orders.

    Groups without a common rank may use this store at the same time, as when each half of a world divides itself.

    rank: of this process in the world; one of `members`.

    Raises:
        ConfigurationError: one of `members` makes a group of other ranks.
        DistStoreError: one of `members` makes no group within `timeout`.
    """
    groups = exchange(store, "members", rank, members, members, timeout)
    others = next((group for group in groups if group != members), None)
    if others is None:
        return
    for other in others:  # so that they do not wait for a rank that never comes
        store.set(f"members/{other}", json.dumps(members))
    raise ConfigurationError(
        f"this rank makes a group of the ranks {members} where another makes one of {others}. Every rank must call "
        "new_group for the same groups in the same order, even for groups that do not include it."
    )


def forget_members(store: Store, rank: int) -> None:
    """Delete what `agree_on_members` of this rank has written, once the group is made: all ranks have read it.

    Later groups may have the same name and this store, and other members.
    """
    with contextlib.suppress(
        RuntimeError, NotImplementedError
    ):  # a store that cannot delete, or that has ended
        store.delete_key(f"members/{rank}")
