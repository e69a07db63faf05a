# SPDX-License-Identifier: Apache-2.0
"""Makes a SUM of an AVG or a PREMUL_SUM, because the inner group does SUM only."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from inagg.errors import ConfigurationError
from inagg.inner.arguments import refuse_shared
from inagg.sums.elements import divide_, is_integer
from inagg.sums.operation import Operation, as_sum


class Scaled(NamedTuple):
    """What the inner group is called with: contributions and options. deliver: see `ForwardingGroup.forward`."""

    tensors: Sequence[torch.Tensor]
    opts: Any
    deliver: Callable[[], None] | None = None


def scale_for_sum(
    operation: Operation,
    tensors: Sequence[torch.Tensor],
    opts: Any,
    ranks: int,
    *,
    results: Sequence[torch.Tensor],
    in_place: bool = False,
) -> Scaled:
    """Scale floats before the sum. Divide integers after it, because no factor of theirs is an integer.

    Args:
        ranks: number of ranks in the group.
        results: the tensors in which this rank gets the result.
        in_place: whether the contributions themselves hold the result: they are then changed.

    Raises:
        ConfigurationError: no backend sums this type; or the method works in place, and elements of a tensor share
            memory.
    """
    for tensor in tensors:
        if tensor.is_cpu and tensor.is_floating_point() and tensor.itemsize == 1:
            raise ConfigurationError(
                f"nothing sums {tensor.dtype} on the CPU: convert to torch.bfloat16 first"
            )
    scale = operation.scale_for(ranks)
    if operation.average and all(is_integer(tensor.dtype) for tensor in tensors):

        def deliver() -> None:
            for result in results:
                divide_(result.data, ranks)

        return Scaled(tensors, as_sum(opts), deliver)
    if scale is None or not all(map(torch.is_floating_point, tensors)):
        return Scaled(tensors, opts)
    if in_place:
        refuse_shared("allreduce", [tensors], rank=0)  # before they are changed
    # Inference mode, because the tensors may be parameters, or may have been made in it. Autograd does not see `data`
    # written, as with torch's groups.
    with torch.inference_mode():
        scaled = [tensor.data.mul_(scale) if in_place else tensor * scale for tensor in tensors]
    return Scaled(scaled, as_sum(opts))
