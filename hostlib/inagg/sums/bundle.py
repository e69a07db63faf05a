# SPDX-License-Identifier: Apache-2.0
"""Small tensors of one call, summed together: every sum takes some 0.1 ms of each rank's processor, whatever its size.

All ranks divide a call in the same way: by the tensors' sizes and lanes, on which they agree.
"""

from collections.abc import Iterable, Sequence
from itertools import compress

import torch

# Elements of a tensor that is worth its copies there and back.
MOST_ELEMENTS = 1 << 16
# Elements of a bundle with more than one tensor, so that copying one overlaps with the packets of the one before.
_MOST_TOGETHER = 1 << 20


class Bundle:
    """Tensors, copied to one flat tensor, each to the beginning of a block of `block_elements`. Zeros are between them.

    So the blocks have the same bits as if each tensor were summed alone, and the sums too, unless rounding is
    stochastic. dtype: of `flat`.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype, block_elements: int) -> None:
        self._tensors = list(tensors)
        sizes = [padded(tensor.numel(), block_elements) for tensor in tensors]
        self.flat = torch.empty(sum(sizes), dtype=dtype, device=tensors[0].device)
        places = list(zip(tensors, torch.split(self.flat, sizes), strict=True))
        torch._foreach_zero_([place[tensor.numel() :] for tensor, place in places])
        self._parts = [place[: tensor.numel()].view(tensor.shape) for tensor, place in places]
        torch._foreach_copy_(self._parts, self._tensors)

    def deliver(self) -> None:
        """Copy the sums to the tensors."""
        plain = [not tensor.is_neg() for tensor in self._tensors]
        torch._foreach_copy_(list(compress(self._tensors, plain)), list(compress(self._parts, plain)))
        for tensor, part in zip(self._tensors, self._parts, strict=True):
            if tensor.is_neg():  # torch's views of negated memory
                tensor.copy_(part)


def padded(elements: int, block_elements: int) -> int:
    """Elements of whole blocks."""
    return -(-elements // block_elements) * block_elements


def divided(tensors: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Which tensors of a call are summed together, as lists of their indices.

    tensors: the lane width, which is the same in a bundle, and the number of elements in whole blocks.
    """
    bundles: list[list[int]] = []
    filling: dict[int, tuple[list[int], int]] = {}
    for index, (lane_bits, elements) in enumerate(tensors):
        if elements > MOST_ELEMENTS:
            bundles.append([index])
            continue
        bundle, before = filling.get(lane_bits, ([], 0))
        if not bundle or before + elements > _MOST_TOGETHER:
            bundle, before = [], 0
            bundles.append(bundle)
        bundle.append(index)
        filling[lane_bits] = bundle, before + elements
    return bundles
