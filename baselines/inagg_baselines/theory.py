# SPDX-License-Identifier: Apache-2.0
"""What a way of summing sends, and in how many steps.

S is the size of the tensor as it is sent, N the number of ranks. Bytes are those of elements. A step is a message of
one host to another that must arrive before the next is sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Racks = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Theory:
    """share: bytes on the busiest link of a host, in its busier direction, divided by S. formula: the share of S, for
    people."""

    share: float
    formula: str
    steps: int


def ring(workers: int, _racks: Racks = ()) -> Theory:
    """A ring over all ranks: each passes a share of the tensor on, N-1 times to sum it and N-1 times to spread it."""
    return Theory(2 * (workers - 1) / workers, "2(N-1)/N S", 2 * (workers - 1))


def sharded_server(workers: int, _racks: Racks = ()) -> Theory:
    """Each rank serves a share of the tensor: it gets this share of N-1 ranks, and sends them the sums."""
    return Theory(ring(workers).share, "2(N-1)/N S", 2 if workers > 1 else 0)


def server(workers: int, _racks: Racks = ()) -> Theory:
    """One rank serves all: N-1 tensors come in over its link, and N-1 go out."""
    return Theory(float(workers - 1), "(N-1) S", 2 if workers > 1 else 0)


def hierarchical(workers: int, racks: Racks) -> Theory:
    """gloo's reduce in each rack, its ring over the racks' first ranks, its broadcast in each rack.

    The first rank of the largest rack, with n ranks, is the busiest. The reduce is a ring that leaves a share of the
    sums at each rank, n-1 steps, and brings them to the first rank, one more. The broadcast is a binomial tree, whose
    root sends the tensor ceil(log2 n) times.
    """
    size, count = max(map(len, racks), default=workers), max(len(racks), 1)
    rounds = (size - 1).bit_length()
    between = ring(count)
    share = (size - 1) / size + between.share + rounds
    return Theory(share, f"{share:.3g} S", (size if size > 1 else 0) + between.steps + rounds)
