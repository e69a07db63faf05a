# SPDX-License-Identifier: Apache-2.0
"""A device simulated on the CPU: holds a worker's floats, and does its part of a staged collective on the memory of
a Staging, with the core's numerics block by block."""

import numpy as np
from numpy.typing import NDArray

from inagg._core import Engine, LaneBits, Staging, Transport, block_exponent, dequantise, quantise
from inagg_simulator.virtual_network import Network

SPECIAL = 0x8000
PATIENCE_S = 20.0


class Device:
    """One collective of `array`, in place."""

    def __init__(
        self,
        array: NDArray[np.float32],
        *,
        lane_bits: LaneBits = 32,
        workers: int,
        words: int,
        average: bool = False,
        memory: NDArray[np.uint8] | None = None,
    ) -> None:
        self.staging = Staging(array.size, lane_bits=lane_bits, workers=workers, words=words, memory=memory)
        self.packed = self.unpacked = 0
        self._array = array
        self._lane_bits, self._workers, self._words = lane_bits, workers, words
        self._average = average
        # Whatever is used before it is written shows.
        for memory_part in (self.staging.datagrams, self.staging.exponents, self.staging.checksums):
            memory_part.view(np.uint8)[...] = 0xEE

    def submit(self, to: Engine | Transport, context: int = 0) -> int:
        return to.submit_staged(self.staging, average=self._average, context=context)

    def scan(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Fills the exponents; the arguments of scanned()."""
        special = []
        for i in range(self.staging.blocks):
            found = block_exponent(self._block(i), lane_bits=self._lane_bits, workers=self._workers)
            is_special = found.special or found.wide
            self.staging.exponents[i] = found.code | (SPECIAL if is_special else 0)
            special += [i] if is_special else []
        rows = np.full((len(special), self.staging.block_elements), np.nan, np.float32)
        for row, i in zip(rows, special, strict=True):
            row[: self._block(i).size] = self._block(i)
        return np.array(special, np.int64), rows

    def pack(self, blocks: int) -> int:
        """Packs up to the block; the argument of packed()."""
        for i in range(self.packed, blocks):
            words, self.staging.checksums[i] = quantise(
                self._block(i),
                exponent=int(self.staging.agreed[i]) & ~SPECIAL,
                lane_bits=self._lane_bits,
                workers=self._workers,
                words=self._words,
            )
            self.staging.datagrams[i, self.staging.offset :] = np.frombuffer(words, np.uint8)
        self.packed = blocks
        return blocks

    def unpack(self, blocks: int) -> None:
        """Takes the sums up to the block, except special ones."""
        for i in range(self.unpacked, blocks):
            if self.staging.agreed[i] & SPECIAL == 0:
                block = self._block(i)
                block[:], _ = dequantise(
                    self.staging.datagrams[i, self.staging.offset :].tobytes(),
                    elements=block.size,
                    exponent=int(self.staging.agreed[i]),
                    lane_bits=self._lane_bits,
                    workers=self._workers,
                    average=self._average,
                )
        self.unpacked = blocks

    def finish(self, to: Engine | Transport) -> None:
        """Take the other sums, once the collective is done: those of special blocks too."""
        self.unpack(self.staging.blocks)
        for i, sums in zip(*to.special_sums(self.staging), strict=True):
            self._block(i)[:] = sums[: self._block(i).size]

    def _block(self, i: int) -> NDArray[np.float32]:
        size = self.staging.block_elements
        return self._array[i * size : (i + 1) * size]


def drive(
    network: Network,
    rank: int,
    device: Device,
    *,
    scan_s: float = 0.0,
    step_s: float = 1e-4,
    step_blocks: int = 3,
) -> None:
    """Has a device scan after a time, and then, a while after there is more to do, pack and unpack a few blocks."""
    busy = False

    def scan(engine: Engine) -> None:
        engine.scanned(device.staging, *device.scan(), now=network.now)
        network.observers.setdefault(rank, []).append(look)

    def look(engine: Engine) -> bool:
        nonlocal busy
        known, summed = engine.progress(device.staging)
        if not busy and (known > device.packed or summed > device.unpacked):
            busy = True
            network.plan(network.now + step_s, rank, step)
        return device.unpacked < device.staging.blocks

    def step(engine: Engine) -> None:
        nonlocal busy
        busy = False
        known, summed = engine.progress(device.staging)
        engine.packed(device.staging, device.pack(min(known, device.packed + step_blocks)), now=network.now)
        device.unpack(min(summed, device.unpacked + step_blocks))

    network.plan(network.now + scan_s, rank, scan)


def run(transport: Transport, device: Device, *, step_blocks: int = 7) -> None:
    """The same over a real socket, in this thread: submits, and returns when the sum is in the array."""
    blocks = device.staging.blocks
    ticket = device.submit(transport)
    transport.scanned(device.staging, *device.scan())
    while device.packed < blocks or device.unpacked < blocks:
        # A device that has packed all waits for sums alone.
        packed = blocks if device.packed == blocks else device.packed
        reached = transport.progress(device.staging, packed, device.unpacked, PATIENCE_S)
        assert reached is not None, "no progress"
        known, summed = reached
        if known > device.packed:
            transport.packed(device.staging, device.pack(min(known, device.packed + step_blocks)))
        device.unpack(summed)
    assert transport.wait(ticket, PATIENCE_S)
    device.finish(transport)
