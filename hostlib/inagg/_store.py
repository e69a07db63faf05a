# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a group tell each other while the group is made, through torch's store."""

import json
from typing import Any

from torch.distributed.distributed_c10d import Store


def tell_all(store: Store, name: str, rank: int, size: int, mine: Any) -> list[Any]:
    """What each rank gave as `mine`, in order of rank; each calls it once with this name. Waits for all of them.

    mine: what JSON can hold; tuples arrive as lists.

    Raises what `store` raises when a rank does not call it in time: torch.distributed.DistStoreError.
    """
    store.set(f"{name}/{rank}", json.dumps(mine))
    return [json.loads(told) for told in store.multi_get([f"{name}/{other}" for other in range(size)])]
