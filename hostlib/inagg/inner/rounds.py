# SPDX-License-Identifier: Apache-2.0
"""Gloo's part in the rounds of a job whose ranks sum themselves (docs/protocol.md, 5.8): a gloo group of its own.

The order of the inner group's collectives is the program's, and a round belongs to none of them.
"""

from datetime import timedelta
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.distributed_c10d import PrefixStore, Store

from inagg.inner.connections import GlooConnections
from inagg.inner.gloo import make_gloo
from inagg.membership.assembly import Assembly
from inagg.membership.store import own_connection
from inagg_contract.documents import LONGEST_CHANGE_S

# A round waits for a rank as long as the rank's program computes. The engine's give-up time is the limit.
_FOR_EVER = timedelta(days=365)
_OPERATIONS = {"or": dist.ReduceOp.BOR, "max": dist.ReduceOp.MAX, "sum": dist.ReduceOp.SUM}


class GlooRounds:
    """Connects the ranks of a job once more. All of them make it, for the way of the same epoch.

    store: keys that only these ranks share. address: of this host, as `ForwardingGroup.form_inner`. host: its name.

    Raises:
        InaggError, RuntimeError: a rank does not connect; also torch's DistStoreError, a RuntimeError.
    """

    def __init__(
        self, store: Store, rank: int, size: int, address: str | None, host: str, epoch: int
    ) -> None:
        own = PrefixStore(f"rounds/{epoch}", own_connection(store))
        with Assembly(own, rank, size, timedelta(seconds=LONGEST_CHANGE_S), host) as ranks:
            self._connections = GlooConnections(address, partial(make_gloo, ranks, timeout=_FOR_EVER), ranks)
            try:
                ranks.exchange("connected for rounds", None)
            except BaseException:
                self._connections.close()
                raise
            self._connections.all_connected()

    def reduce(self, array: NDArray[Any], operation: Literal["or", "max", "sum"]) -> None:
        """As Reducing.reduce. Sums wrap around."""
        options: Any = dist.AllreduceOptions()
        options.reduceOp = _OPERATIONS[operation]
        self._connections.group.allreduce([torch.from_numpy(array)], options).wait()

    def break_off(self) -> None:
        """As Reducing.break_off."""
        self._connections.break_off()

    def close(self) -> None:
        """As Reducing.close."""
        self._connections.close()
