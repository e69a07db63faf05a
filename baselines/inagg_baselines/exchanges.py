# SPDX-License-Identifier: Apache-2.0
"""The architectures that exchange weights. Each rank runs its own optimizer on its own gradients."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from inagg_baselines.catalog import ASYNCHRONOUS, GOSSIP, LEAVES, LOCAL, RANDOM_GOSSIP, STALE, Architecture
from inagg_baselines.gossip import GossipExchange, random_partner, ring_neighbours
from inagg_baselines.leaves import LeavesExchange
from inagg_baselines.local_sgd import LocalExchange
from inagg_baselines.servers import ServerExchange
from inagg_baselines.theory import Racks


class Exchange(Protocol):
    """Exchanges weights, in place of the all-reduce of gradients. All ranks call each method.

    If a rank ends or stands still, the others raise LostRankError or gloo's RuntimeError, at the latest after the
    group's time-out. Then the exchange is of no more use.
    """

    def start(self, parameters: Sequence[torch.Tensor]) -> None:
        """Give all ranks the weights of rank 0. Before the first step, once.

        parameters: float32, with the same shapes at all ranks. Raises ValueError if there are none, or if types or the
        numbers of elements differ.
        """

    def after_step(self) -> None:
        """The optimizer has changed the parameters: exchange them."""

    def finish(self) -> None:
        """Give all ranks the same weights, bit for bit. After the last step, once."""


def make(
    architecture: Architecture, racks: Racks = (), *, timeout: timedelta | None = None, seed: int = 0
) -> Exchange:
    """An architecture that exchanges weights, on a gloo group of all ranks, which it makes. All ranks call this.

    Args:
        architecture: of the kind "weights".
        racks: all ranks by rack; by default they are in one. Gossip's ring goes through rack after rack, and
            server:leaves has a leaf in each.
        timeout: how long a rank waits for another; by default as long as torch's groups, half an hour.
        seed: of the pairs of gossip:random; the same at all ranks.

    Raises ValueError for another kind, and if there are too few ranks.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    architecture.check(ranks)
    ring = [one for rack in racks for one in rack] or list(range(ranks))
    number = architecture.number
    new_group = partial(dist.new_group, backend="gloo", timeout=timeout)
    kinds: Mapping[str, Callable[[object], Exchange]] = {
        ASYNCHRONOUS: lambda group: ServerExchange(group, number or ranks, bound=None),
        STALE: lambda group: ServerExchange(group, ranks, bound=number),
        LEAVES: lambda group: _make_leaves(group, racks or [range(ranks)], new_group),
        GOSSIP: lambda group: GossipExchange(group, ring_neighbours(rank, ring)),
        RANDOM_GOSSIP: lambda group: GossipExchange(group, random_partner(rank, ranks, seed)),
        LOCAL: lambda group: LocalExchange(group, number or 1),
    }
    if architecture.family not in kinds:
        raise ValueError(f"{architecture.name} sums gradients: make it with inagg_baselines.collectives")
    return kinds[architecture.family](new_group())


def _make_leaves(group: object, racks: Racks, new_group: Callable[..., Any]) -> LeavesExchange:
    """All ranks make all groups, in the same order."""
    groups = [new_group(list(rack)) for rack in racks]
    leaves = [rack[0] for rack in racks]
    of_leaves = new_group(leaves)
    rank = dist.get_rank()
    own = next(number for number, rack in enumerate(racks) if rank in rack)
    server = ServerExchange(of_leaves, len(leaves), bound=None) if rank in leaves else None
    return LeavesExchange(group, groups[own], leaves[own], len(leaves), server)
