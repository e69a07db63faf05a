# SPDX-License-Identifier: Apache-2.0
"""Lanes by torch operations, on any device: the reference for `by_triton`. Packets are copied."""

import numpy as np
import torch
from numpy.typing import NDArray

from inagg.device.numerics import (
    NO_LIMIT,
    Scan,
    blocks_of,
    quantise,
    residual,
    sums,
    write_lanes,
)
from inagg.device.streams import pinned_empty
from inagg.device.sums import SumMemory, SumRequest

_UP, _LEFT, _DOWN = range(3)  # what a block's factors are for: packing, the residual, unpacking


class TorchPortions:
    """See `inagg.device.sums.Portions`."""

    most = (
        1 << 20
    )  # bounds the memory on the device; large enough that launching takes less time than the work

    def __init__(self, request: SumRequest, memory: SumMemory) -> None:
        self._request, self._memory = request, memory
        self._flat, self._device = request.flat, request.flat.device
        self._staging, self._lanes = memory.staging, memory.lanes
        self._size = memory.lanes.block_elements
        # CUDA divides by a host scalar by multiplying with its reciprocal.
        self._divisor: torch.Tensor | None = None
        self._factors = pinned_empty(3 * self._staging.blocks, torch.float64, self._device).view(3, -1)

    def scan(self) -> None:
        blocks, step = self._staging.blocks, max(1, self.most // self._size)
        scan = Scan(self._lanes, blocks, self._device, self._memory.seed is not None)
        for first in range(0, blocks, step):
            scan.blocks(blocks_of(self._flat, first, min(first + step, blocks), self._size), first)
        self._memory.exponents.copy_(scan.codes(), non_blocking=True)

    def pack(self, first: int, last: int) -> None:
        memory, lanes = self._memory, self._lanes
        codes = self._staging.agreed[first:last]
        limit = self._limit(first, last)
        elements = blocks_of(self._flat, first, last, self._size)
        quantised = quantise(
            elements,
            self._column(_UP, first, lanes.up(codes)),
            lanes,
            limit=limit,
            seed=memory.seed,
            first_element=first * self._size,
        )
        packets = torch.empty(last - first, self._staging.stride, dtype=torch.uint8, device=self._device)
        checksums = write_lanes(quantised, lanes, packets[:, self._staging.offset :])
        memory.packets[first:last].copy_(packets.view(torch.int32), non_blocking=True)
        memory.checksums[first:last].copy_(checksums, non_blocking=True)
        if self._request.residual is not None:
            left = residual(elements, quantised, self._column(_LEFT, first, lanes.down(codes)), limit=limit)
            part = self._request.residual[first * self._size : last * self._size]
            part.copy_(left.view(-1)[: part.numel()])

    def unpack(self, first: int, last: int) -> None:
        lanes = self._lanes
        if self._request.average and self._divisor is None:
            self._divisor = torch.full((1,), float(lanes.workers), dtype=torch.float32, device=self._device)
        packets = self._memory.packets[first:last].to(self._device, non_blocking=True)
        words = packets.view(torch.uint8)[:, self._staging.offset :]
        down = self._column(_DOWN, first, lanes.down(self._staging.agreed[first:last]))
        part = self._flat[first * self._size : last * self._size]
        if part.numel() == (last - first) * self._size:
            sums(words, down, lanes, self._divisor, out=part.view(-1, self._size))
        else:
            part.copy_(sums(words, down, lanes, self._divisor).view(-1)[: part.numel()])

    def _column(self, use: int, first: int, factors: NDArray[np.float64]) -> torch.Tensor:
        """Factors of the blocks from `first` on, on the device: [n, 1]. Each part of `_factors` serves one copy."""
        place = self._factors[use, first : first + len(factors)]
        place.numpy()[:] = factors
        return place.to(self._device, non_blocking=True).unsqueeze(1)

    def _limit(self, first: int, last: int) -> torch.Tensor | None:
        """The limits of the blocks first to last (exclusive) on the device: [n, 1]; None if all have NO_LIMIT."""
        limits = self._staging.limits[first:last]
        if (limits == NO_LIMIT).all():  # the usual case
            return None
        return torch.from_numpy(limits).to(self._device).unsqueeze(1)
