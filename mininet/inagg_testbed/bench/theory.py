# SPDX-License-Identifier: Apache-2.0
"""What each way of summing sends over the busiest link of a host, and in how many steps.

S is the size of a tensor in lanes (4, 2 or 1 bytes an element), N the number of workers. Bytes are those of elements,
in each direction of the link. A step is a message of one host to another that must arrive before the next is sent:

gloo            A ring: 2(N-1)/N S in 2(N-1) steps. Each rank passes a share of the tensor on, N-1 times to sum it and
                N-1 times to spread the sums.
inagg           S in one step: a contribution to the switch and, in the same round trip, the result from it.
inagg-shared    S + S/k in 2 steps, with k servers, the greatest power of two of the ranks' processes. A rank sends its
                contributions, and the results of its server's chunks; it receives their sums from the switch, and all
                results.
inagg-shared-1  S in 2 steps: the server's link carries the sums, and the results once, for the switch to multicast.
inagg-server    2(N-1)/N S in 2 steps. Each rank's process serves 1/N of the chunks: it sends (N-1)/N S to the others'
                servers, and its server results of S/N to N-1 ranks; it receives as much.
inagg-server-1  N S in 2 steps: the server's link carries all contributions, and the results to all ranks.

gloo-hierarchical has no entry: it depends on the racks.
"""

from dataclasses import dataclass

from inagg_testbed.bench.plan import (
    COLOCATED,
    HIERARCHICAL,
    LEASED,
    ONE_SERVER,
    SHARED,
    SHARED_ONE_SERVER,
    BackendSpec,
)

_FLOAT32_BITS = 32


@dataclass(frozen=True)
class Theory:
    """share: bytes on the busiest link of a host, each way, divided by S. formula: the share of S, as a formula."""

    share: float
    formula: str
    steps: int


def theory(spec: BackendSpec, workers: int) -> Theory | None:
    """The theory of a backend; None if there is none."""
    exchange = 2 * (workers - 1) / workers
    known = {
        "gloo": Theory(exchange, "2(N-1)/N S", 2 * (workers - 1)),
        LEASED: Theory(1.0, "S", 1),
        SHARED: Theory(1 + 1 / (1 << (workers.bit_length() - 1)), "S + S/k", 2),
        SHARED_ONE_SERVER: Theory(1.0, "S", 2),
        COLOCATED: Theory(exchange, "2(N-1)/N S", 2),
        ONE_SERVER: Theory(float(workers), "N S", 2),
    }
    assert spec.name in known or spec.name == HIERARCHICAL
    return known.get(spec.name)


def link_bits_per_element(spec: BackendSpec, workers: int) -> float | None:
    """Bits of elements that a backend must send over the busiest link, each way, for each element of the tensor."""
    found = theory(spec, workers)
    return None if found is None else found.share * (spec.lane_bits or _FLOAT32_BITS)
