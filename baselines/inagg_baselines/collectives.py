# SPDX-License-Identifier: Apache-2.0
"""The architectures that sum gradients, on torch's process groups."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist

from inagg_baselines.catalog import HIERARCHICAL, RING, SYNCHRONOUS, Architecture
from inagg_baselines.messages import Messages
from inagg_baselines.theory import Racks


class AllReduce(Protocol):
    """Sums a tensor of all ranks in place. All ranks call it."""

    def __call__(self, tensor: torch.Tensor) -> None: ...


class Ring:
    """gloo's all-reduce. group: of all ranks."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def __call__(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor, group=self._group)


class Hierarchy:
    """All-reduce in three steps of gloo: reduce in each rack, all-reduce of the first ranks, broadcast in each rack."""

    def __init__(self, racks: Racks) -> None:
        """Make the groups; all ranks of the world call this."""
        rank, self._leader, self._rack = dist.get_rank(), 0, None
        for ranks in racks:
            group = dist.new_group(list(ranks), backend="gloo")
            if rank in ranks:
                self._leader, self._rack = ranks[0], group
        self._leaders: Any = dist.new_group([ranks[0] for ranks in racks], backend="gloo")

    def __call__(self, tensor: torch.Tensor) -> None:
        dist.reduce(tensor, self._leader, group=self._rack)
        if dist.get_rank() == self._leader:
            dist.all_reduce(tensor, group=self._leaders)
        dist.broadcast(tensor, self._leader, group=self._rack)


class ParameterServer:
    """A synchronous parameter server (Li et al.: Scaling distributed machine learning with the parameter server, OSDI
    2014) that returns sums. It has a shard at each of the first `shards` ranks, whose processes work as well.

    Each rank sends a part of its tensor to each shard. A shard adds the parts in the order of the ranks, so that all
    runs have the same bits, and sends the sums back. Ranks begin with the shard behind their own, so that no shard gets
    all packets first.
    """

    def __init__(self, group: Any, shards: int) -> None:
        self._messages, self._shards = Messages(group), shards

    def __call__(self, tensor: torch.Tensor) -> None:
        parts = dict(enumerate(tensor.view(-1).tensor_split(self._shards)))
        parts = {rank: part for rank, part in parts.items() if part.numel() > 0}
        own = parts.pop(self._messages.rank, None)
        others = self._messages.others
        came = {} if own is None else {rank: torch.empty_like(own) for rank in others}
        self._messages.swap(sent={rank: parts[rank] for rank in others if rank in parts}, received=came)
        if own is not None:
            came[self._messages.rank] = own.clone()
            own.zero_()
            for _, part in sorted(came.items()):
                own += part
        back = {} if own is None else dict.fromkeys(others, own)
        self._messages.swap(sent=back, received=parts)


def make(architecture: Architecture, group: Any, racks: Racks) -> AllReduce:
    """An architecture that sums gradients. All ranks of the world call this.

    Args:
        architecture: of the kind "sums".
        group: torch's gloo group of the ranks that sum.
        racks: these ranks by rack; no rack is empty.

    Raises ValueError for another kind, and if there are too few ranks.
    """
    ranks = sum(map(len, racks))
    architecture.check(ranks)
    kinds: Mapping[str, Callable[[], AllReduce]] = {
        RING: lambda: Ring(group),
        HIERARCHICAL: lambda: Hierarchy(racks),
        SYNCHRONOUS: lambda: ParameterServer(group, architecture.number or ranks),
    }
    if architecture.family not in kinds:
        raise ValueError(f"{architecture.name} exchanges weights: make it with inagg_baselines.exchanges")
    return kinds[architecture.family]()
