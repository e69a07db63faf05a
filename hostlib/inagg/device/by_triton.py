# SPDX-License-Identifier: Apache-2.0
"""Lanes by fused kernels (`inagg.device.kernels`): one launch each.

Importing this module imports Triton.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton

from inagg.device import kernels
from inagg.device.numerics import NO_LIMIT, Lanes, as_int32
from inagg.device.sums import SumMemory, SumRequest

_TILE = 1024  # elements of a program, unless a block has more
_ELEMENTS_PER_WARP = 1024  # so that most blocks are in one warp, which reduces them without others
_MOST_WARPS = 16
_WORD_BYTES = 4  # kernels access packets by words of 32 bits


@dataclass(frozen=True)
class _Tile:
    """rows, columns: blocks and elements of a block in a program; powers of two."""

    rows: int
    columns: int

    @property
    def settings(self) -> dict[str, int]:
        """Of a launch. Each operation of a kernel rounds on its own."""
        warps = max(1, min(_MOST_WARPS, self.rows * self.columns // _ELEMENTS_PER_WARP))
        return {"ROWS": self.rows, "num_warps": warps, "enable_fp_fusion": False}

    def programs(self, blocks: int) -> tuple[int]:
        return (-(-blocks // self.rows),)


@lru_cache
def _tile(block_elements: int) -> _Tile:
    columns = triton.next_power_of_2(block_elements)
    return _Tile(max(1, _TILE // columns), columns)


def _layout(lanes: Lanes, packets: torch.Tensor, offset: int) -> dict[str, int]:
    """The constants that pack and unpack share."""
    return {
        "BITS": lanes.bits,
        "F": lanes.fraction_bits,
        "L": lanes.block_elements,
        "STRIDE": packets.shape[1],
        "OFFSET": offset // _WORD_BYTES,
    }


def scan(flat: torch.Tensor, lanes: Lanes, codes: torch.Tensor, *, stochastic: bool) -> None:
    """Write the codes of all blocks of `flat`, as `numerics.Scan.codes` returns them.

    Args:
        flat: float32 [n] on a GPU, contiguous; n > 0.
        codes: int16 [K], the output.
        stochastic: whether the blocks will be rounded stochastically, which needs other exponents.
    """
    tile, blocks = _tile(lanes.block_elements), len(codes)
    kernels.scan[tile.programs(blocks)](
        flat,
        flat.numel(),
        codes,
        blocks,
        ROUND_UP=lanes.round_up(stochastic),
        L=lanes.block_elements,
        COLUMNS=tile.columns,
        **tile.settings,
    )


def pack(
    flat: torch.Tensor,
    first: int,
    last: int,
    lanes: Lanes,
    *,
    codes: torch.Tensor,
    packets: torch.Tensor,
    offset: int,
    checksums: torch.Tensor,
    limits: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    seed: int | None = None,
) -> None:
    """Write the lanes and checksums of the blocks first to last (exclusive) of `flat`, which has K blocks.

    Args:
        flat: float32 [n] on a GPU, contiguous.
        codes: int16 [K], agreed; flags are ignored.
        packets: int32 [K, stride / 4], a packet a row, whose lanes begin after `offset` bytes, a multiple of 4.
        checksums: int32 [K], the bits of uint32.
        limits: int32 [K], bits: elements of larger magnitudes count as zero. None: there are none.
        residual: float32 [n], receives x - q 2^(E-F), 0 beyond the limit. None: it is not computed.
        seed: of stochastic rounding; None rounds to nearest.
    """
    tile = _tile(lanes.block_elements)
    key = seed or 0
    kernels.pack[tile.programs(last - first)](
        flat,
        flat.numel(),
        first,
        last,
        codes,
        limits,
        packets,
        checksums,
        residual,
        as_int32(key),
        as_int32(key >> 32),
        STOCHASTIC=seed is not None,
        BIAS=as_int32(lanes.bias),
        QUADS=tile.columns // 4,
        **_layout(lanes, packets, offset),
        **tile.settings,
    )


def unpack(
    flat: torch.Tensor,
    first: int,
    last: int,
    lanes: Lanes,
    *,
    codes: torch.Tensor,
    packets: torch.Tensor,
    offset: int,
    average: bool = False,
) -> None:
    """Write the sums in results to the blocks first to last (exclusive) of `flat`; with `average` divided by N.

    `flat`, `codes`, `packets` and `offset` are those of `pack`.
    """
    tile = _tile(lanes.block_elements)
    kernels.unpack[tile.programs(last - first)](
        flat,
        flat.numel(),
        first,
        last,
        codes,
        packets,
        lanes.workers,
        AVERAGE=average,
        ZERO=as_int32(lanes.workers * lanes.bias),
        WORDS=tile.columns * lanes.bits // 32,
        **_layout(lanes, packets, offset),
        **tile.settings,
    )


class TritonPortions:
    """See `inagg.device.sums.Portions`. The kernels access packets, codes and checksums in pinned host memory."""

    most = 1 << 62  # a launch needs no memory on the device

    def __init__(self, request: SumRequest, memory: SumMemory) -> None:
        self._request, self._memory = request, memory
        self._limits: torch.Tensor | None = None
        self._limits_known = False

    def scan(self) -> None:
        memory = self._memory
        scan(self._request.flat, memory.lanes, memory.exponents, stochastic=memory.seed is not None)

    def pack(self, first: int, last: int) -> None:
        memory, request = self._memory, self._request
        pack(
            request.flat,
            first,
            last,
            memory.lanes,
            codes=memory.agreed,
            packets=memory.packets,
            offset=memory.staging.offset,
            checksums=memory.checksums,
            limits=self._all_limits(),
            residual=request.residual,
            seed=memory.seed,
        )

    def unpack(self, first: int, last: int) -> None:
        memory, request = self._memory, self._request
        unpack(
            request.flat,
            first,
            last,
            memory.lanes,
            codes=memory.agreed,
            packets=memory.packets,
            offset=memory.staging.offset,
            average=request.average,
        )

    def _all_limits(self) -> torch.Tensor | None:
        """The limits of all blocks, on the device; None if all have NO_LIMIT."""
        if not self._limits_known:
            self._limits_known = True
            limits = self._memory.staging.limits
            if (limits != NO_LIMIT).any():  # rare
                self._limits = torch.from_numpy(limits).to(self._request.flat.device)
        return self._limits
