# SPDX-License-Identifier: Apache-2.0
"""What an architecture sends in a step of training, and in how many steps of the network.

S is the size of the gradients, or of the weights, as they are sent; N is the number of ranks. Bytes are those of
elements. A step is a message of one host to another that must arrive before the next is sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Racks = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Theory:
    """share: bytes on the busiest link of a host, in its busier direction, divided by S. formula: the share of S, for
    people. steps: messages that wait for one another, on average if they are not the same in each training step."""

    share: float
    formula: str
    steps: float


def ring(workers: int) -> Theory:
    """A ring over all ranks: each passes a share of the tensor on, N-1 times to sum it and N-1 times to spread it."""
    return Theory(2 * (workers - 1) / workers, "2(N-1)/N S", 2 * (workers - 1))


def server(workers: int, shards: int | None = None) -> Theory:
    """A parameter server with a shard at each of the first ranks, by default at all.

    Each rank sends a part of its tensor to each shard, and gets a part from it. A rank with one of k shards sends k-1
    parts of S/k as a worker, and N-1 as a shard.
    """
    count = workers if shards is None else shards
    formula = {None: "2(N-1)/N S", 1: "(N-1) S", 2: "N/2 S"}.get(shards, f"(N+{count - 2})/{count} S")
    return Theory((workers + count - 2) / count, formula, 2 if workers > 1 else 0)


def hierarchical(workers: int, racks: Racks) -> Theory:
    """gloo's reduce in each rack, its ring over the racks' first ranks, its broadcast in each rack.

    The first rank of the largest rack, with n ranks, is the busiest. The reduce is a ring that leaves a share of the
    sums at each rank, n-1 steps, and brings them to the first rank, one more. The broadcast is a binomial tree, whose
    root sends the tensor ceil(log2 n) times.
    """
    return _of_racks(workers, racks, ring(max(len(racks), 1)))


def leaves(workers: int, racks: Racks) -> Theory:
    """As `hierarchical`, but for a server with a shard at each rack's first rank in place of the ring over them."""
    return _of_racks(workers, racks, server(max(len(racks), 1)))


def _of_racks(workers: int, racks: Racks, between: Theory) -> Theory:
    size = max(map(len, racks), default=workers)
    rounds = (size - 1).bit_length()
    share = (size - 1) / size + between.share + rounds
    return Theory(share, f"{share:.3g} S", (size if size > 1 else 0) + between.steps + rounds)


def gossip(workers: int, partners: int) -> Theory:
    """Each rank sends its tensor to each partner, and gets theirs, at the same time."""
    count = min(partners, workers - 1)
    return Theory(float(count), {0: "0", 1: "S"}.get(count, f"{count} S"), min(count, 1))


def local(workers: int, period: int) -> Theory:
    """A ring all-reduce in one of `period` training steps."""
    whole = ring(workers)
    return Theory(whole.share / period, f"2(N-1)/({period}N) S", whole.steps / period)
