# SPDX-License-Identifier: Apache-2.0
"""Makes a SUM of an AVG or a PREMUL_SUM, because the inner group does SUM only."""

from collections.abc import Sequence
from typing import Any

import torch

from inagg.errors import ConfigurationError
from inagg.inner.group import refuse_gaps
from inagg.sums.operation import Operation, as_sum


def scale_for_sum(
    operation: Operation, tensors: Sequence[torch.Tensor], opts: Any, ranks: int, in_place: str | None = None
) -> tuple[Sequence[torch.Tensor], Any]:
    """Scale the contributions, if they are floats and the operation scales them.

    Args:
        ranks: number of ranks in the group.
        in_place: the name of the called method, if the contributions themselves hold the result: they are then changed.

    Returns:
        Contributions and options for the inner group.

    Raises:
        ConfigurationError: no backend sums this type; or the method works in place, and the tensors have gaps.
    """
    for tensor in tensors:
        if tensor.is_cpu and tensor.is_floating_point() and tensor.itemsize == 1:
            raise ConfigurationError(
                f"nothing sums {tensor.dtype} on the CPU: convert to torch.bfloat16 first"
            )
    scale = operation.scale_for(ranks)
    if scale is None or not all(map(torch.is_floating_point, tensors)):
        return tensors, opts
    if in_place:
        refuse_gaps(in_place, [tensors])  # before they are changed
    values = [tensor.detach() for tensor in tensors]  # parameters may be summed in place
    scaled = [value.mul_(scale) if in_place else value * scale for value in values]
    return scaled, as_sum(opts)
