# SPDX-License-Identifier: Apache-2.0
"""Messages of one rank to another, over gloo's point-to-point."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from inagg_baselines.errors import LostRankError


class Messages:
    """Sends and receives tensors, on the CPU and contiguous. For several threads, which wait without the GIL.

    group: torch's gloo group. rank: this rank in it. others: its other ranks, from the one behind this rank on, so that
    no rank gets all first messages. Messages from one rank to another arrive in order if they have the same tag, and do
    not meet those with another tag. All methods, and the functions that they return, raise LostRankError.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.others = [(self.rank + distance) % self.ranks for distance in range(1, self.ranks)]

    def send(self, tensor: torch.Tensor, rank: int, tag: int) -> Callable[[], None]:
        """Returns a function that waits until the tensor may change."""
        return self._begun(rank, lambda: dist.isend(tensor, group=self._group, group_dst=rank, tag=tag))

    def receive(self, tensor: torch.Tensor, rank: int, tag: int) -> Callable[[], None]:
        """Returns a function that waits until the tensor has been filled."""
        return self._begun(rank, lambda: dist.irecv(tensor, group=self._group, group_src=rank, tag=tag))

    def swap(
        self, sent: Mapping[int, torch.Tensor], received: Mapping[int, torch.Tensor], tag: int = 0
    ) -> None:
        """Sends tensors to ranks and fills others from ranks, all at the same time."""
        waits = [self.receive(tensor, rank, tag) for rank, tensor in received.items()]
        waits += [self.send(tensor, rank, tag) for rank, tensor in sent.items()]
        for wait in waits:
            wait()

    def _begun(self, rank: int, begin: Callable[[], Any]) -> Callable[[], None]:
        def named(call: Callable[[], Any]) -> Any:
            try:
                return call()
            except RuntimeError as error:  # of gloo
                raise LostRankError(dist.get_global_rank(self._group, rank)) from error

        work = named(begin)
        return lambda: named(work.wait)
