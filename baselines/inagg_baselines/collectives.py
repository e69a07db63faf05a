# SPDX-License-Identifier: Apache-2.0
"""The baselines on torch's process groups."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist

from inagg_baselines.catalog import HIERARCHICAL, RING
from inagg_baselines.theory import Racks


class AllReduce(Protocol):
    """Sums a tensor of all ranks in place. All ranks call it."""

    def __call__(self, tensor: torch.Tensor) -> None: ...


class Ring:
    """gloo's all-reduce. group: of all ranks."""

    def __init__(self, group: Any, _racks: Racks) -> None:
        self._group = group

    def __call__(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor, group=self._group)


class Hierarchy:
    """All-reduce in three steps of gloo: reduce in each rack, all-reduce of the first ranks, broadcast in each rack."""

    def __init__(self, _group: Any, racks: Racks) -> None:
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


_KINDS: Mapping[str, Callable[[Any, Racks], AllReduce]] = {RING: Ring, HIERARCHICAL: Hierarchy}


def make(name: str, group: Any, racks: Racks) -> AllReduce:
    """A baseline. All ranks of the world call this.

    Args:
        name: of the catalog.
        group: torch's gloo group of the ranks that sum.
        racks: these ranks by rack; no rack is empty.
    """
    return _KINDS[name](group, racks)
