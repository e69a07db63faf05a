# SPDX-License-Identifier: Apache-2.0
"""A tree of parameter servers: one in each rack, and an asynchronous one above them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from inagg_baselines.servers import ServerExchange
from inagg_baselines.vector import Vector


class LeavesExchange:
    """Servers in a tree (Gupta et al.: Model accuracy and runtime tradeoff in distributed deep learning, ICDM 2016).

    After each step the ranks of a rack send the changes of their weights to the rack's first rank, its leaf, by gloo's
    reduce. The leaves train on an asynchronous server that has a shard at each of them, and pass its weights on to
    their racks. So ranks wait for those of their rack, and racks for none: the paper's n-softsync, where n is the
    number of racks. Ranks of a rack take the same number of steps; racks may take different ones. With one rack and
    SGD, also with momentum and weight decay, training equals synchronous training up to rounding.
    """

    def __init__(self, group: Any, rack: Any, leaf: int, leaves: int, server: ServerExchange | None) -> None:
        """group, rack: torch's gloo groups, of all ranks and of the rack. leaf: the rank in the world of the rack's.

        leaves: how many there are. server: of the leaves; None at other ranks.
        """
        self._group, self._rack, self._leaf, self._server = group, rack, leaf, server
        self._part = leaves / dist.get_world_size(group)  # the server divides by `leaves`

    def start(self, parameters: Sequence[torch.Tensor]) -> None:
        """See Exchange."""
        self._vector = Vector(parameters, self._group)
        self._weights = self._vector.flat.clone()  # of the last answer
        if self._server is not None:
            self._server.start([self._weights])

    def after_step(self) -> None:
        """See Exchange."""
        change = self._vector.read().sub_(self._weights)
        self._in_rack(dist.reduce, change)
        if self._server is not None:
            self._weights.add_(change, alpha=self._part)
            self._server.after_step()
        self._pass_on()

    def finish(self) -> None:
        """See Exchange."""
        if self._server is not None:
            self._server.finish()
        self._pass_on()

    def _pass_on(self) -> None:
        """Give the rack the weights of its leaf."""
        self._in_rack(dist.broadcast, self._weights)
        self._vector.flat.copy_(self._weights)
        self._vector.write()

    def _in_rack(self, collective: Callable[..., object], tensor: torch.Tensor) -> None:
        try:
            collective(tensor, self._leaf, group=self._rack)
        except RuntimeError:  # of gloo: a rank of the rack has been lost
            if self._server is not None:
                self._server.give_up(self._leaf)  # without its rack a leaf cannot go on
            raise
