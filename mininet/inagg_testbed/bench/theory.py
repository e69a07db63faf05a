# SPDX-License-Identifier: Apache-2.0
"""What each way of summing sends over the busiest link of a host, and in how many steps.

S is the size of a tensor in lanes (4, 2 or 1 bytes an element; for gloo of the tensor itself), N the number of workers.
Bytes are those of elements, in each direction of the link. A step is a message of one host to another that must arrive
before the next is sent:

inagg           S in one step: a contribution to the switch and, in the same round trip, the result from it.
inagg-shared    S in 2 steps. A rank whose process runs one of the k servers sends the contributions to the other
                servers' chunks, and the results of its server's chunks; it receives the sums of its server's chunks
                from the switch, and the results of the others. Below several switches, and with more than MOST_HOMES
                servers, S + S/k: the switch sends this rank all results.
inagg-shared-1  S in 2 steps: the server's link carries the sums, and the results once, for the switch to multicast.
inagg-server    2(N-1)/N S in 2 steps. Each rank's process serves 1/N of the chunks: it sends (N-1)/N S to the others'
                servers, and its server results of S/N to N-1 ranks; it receives as much. In racks of one size it is as
                much in 4 steps: to a server of the rack, from there to the root's, and back.
inagg-server-1  N S in 2 steps: the server's link carries all contributions, and the results to all ranks.

The theories of gloo, gloo-hierarchical, gloo-server and gloo-server-1 are in inagg_baselines.
"""

from collections.abc import Callable, Mapping

from inagg_baselines.catalog import BASELINES
from inagg_baselines.theory import Racks, Theory, ring
from inagg_contract.aggregation import MOST_HOMES
from inagg_contract.racks import Racks as ServerRacks
from inagg_testbed.bench.plan import (
    INAGG,
    INAGG_SERVER,
    INAGG_SERVER_1,
    INAGG_SHARED,
    INAGG_SHARED_1,
    BackendSpec,
)

_THEORIES: Mapping[str, Callable[[int], Theory]] = {
    INAGG: lambda _: Theory(1.0, "S", 1),
    INAGG_SHARED: lambda _: Theory(1.0, "S", 2),
    INAGG_SHARED_1: lambda _: Theory(1.0, "S", 2),
    INAGG_SERVER: lambda workers: Theory(ring(workers).share, "2(N-1)/N S", 2),
    INAGG_SERVER_1: lambda workers: Theory(float(workers), "N S", 2),
}


def theory(spec: BackendSpec, workers: int, racks: Racks) -> Theory:
    """The theory of a backend. racks: the ranks below each leaf, those beyond `workers` too."""
    if spec.name in BASELINES:
        return BASELINES[spec.name].theory(workers, racks_of(workers, racks))
    servers = 1 << (workers.bit_length() - 1)
    if spec.name == INAGG_SHARED and (len(racks_of(workers, racks)) > 1 or servers > MOST_HOMES):
        return Theory(1 + 1 / servers, "S + S/k", 2)
    if spec.name == INAGG_SERVER and len(known := racks_of(workers, racks)) > 1:
        return _within_racks(workers, known)
    return _THEORIES[spec.name](workers)


def _within_racks(workers: int, racks: Racks) -> Theory:
    """Servers of ranks that sum within racks first (protocol.md, 5.6)."""
    label = {rank: str(number) for number, rack in enumerate(racks) for rank in rack}
    paths = ServerRacks([label[rank] for rank in range(workers)], workers)
    chunks = []  # on the link of each rank, of a row of one chunk a way
    for rank in range(workers):
        served = paths.served_by(rank)
        sent = sum(paths.server(rank, way) != rank for way in range(workers))
        sent += sum(len(set(one.members) - {rank}) + (one.above is not None) for one in served)
        chunks.append(sent)
    steps = 4 if any(one.above is not None for rank in range(workers) for one in paths.served_by(rank)) else 2
    share = max(chunks) / workers
    return Theory(share, "2(N-1)/N S" if share == ring(workers).share else f"{share:.3g} S", steps)


def racks_of(workers: int, racks: Racks) -> list[list[int]]:
    """The first `workers` ranks, by rack; without empty racks."""
    within = [[rank for rank in rack if rank < workers] for rack in racks]
    return [rack for rack in within if rack]


def theory_bytes(known: Theory, spec: BackendSpec, elements: int, element_bits: int = 32) -> float:
    """Bytes of elements on the busiest link of a host, in one direction. element_bits: of the tensor's type."""
    return known.share * (spec.lane_bits or element_bits) / 8 * elements
