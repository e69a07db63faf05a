# SPDX-License-Identifier: Apache-2.0
"""The parameters of a model as one vector."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist


class Vector:
    """The parameters of a model, copied to and from one float32 vector on the CPU.

    flat: the vector, of shape (elements,). parameters: float32 tensors of any shape and device.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], group: Any) -> None:
        """Give all ranks of the group the weights of its first rank; all ranks call this.

        Raises ValueError if a parameter is not float32, if there is no element, and if the ranks have different numbers
        of elements.
        """
        for number, parameter in enumerate(parameters):
            if parameter.dtype != torch.float32:
                # In bfloat16 a change of weights, divided by the number of ranks, is often rounded away.
                raise ValueError(
                    f"parameter {number} is {parameter.dtype}, and weights are exchanged in float32:"
                    " train with model.float(), under torch.autocast if you need the speed"
                )
        self._group = group
        sizes = [parameter.numel() for parameter in parameters]
        self.flat = torch.empty(sum(sizes))
        _check_sizes(self.flat.numel(), group)
        self._views = [
            (parameter, view.view(parameter.shape))
            for parameter, view in zip(parameters, torch.split(self.flat, sizes), strict=True)
        ]
        self.read()
        dist.broadcast(self.flat, group=group, group_src=0)
        self.write()

    @torch.no_grad()
    def read(self) -> torch.Tensor:
        """Copy the parameters to the vector. Returns the vector."""
        for parameter, view in self._views:
            view.copy_(parameter)
        return self.flat

    @torch.no_grad()
    def write(self) -> None:
        """Copy the vector to the parameters."""
        for parameter, view in self._views:
            parameter.copy_(view)

    def average(self) -> None:
        """Give all ranks the mean of their weights, with the same bits, by gloo's all-reduce. All ranks call this."""
        dist.all_reduce(self.read(), group=self._group)
        self.flat /= dist.get_world_size(self._group)
        self.write()


def _check_sizes(elements: int, group: Any) -> None:
    sizes = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([elements]), group=group)
    of_ranks = [int(size) for size in sizes]
    if len(set(of_ranks)) > 1:
        raise ValueError(f"the ranks have models of different sizes: {of_ranks} parameters, by rank")
    if elements == 0:
        raise ValueError("there is no parameter to exchange: do any of the model's have requires_grad?")
