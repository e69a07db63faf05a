# SPDX-License-Identifier: Apache-2.0
"""The baselines by name, as in `inagg bench allreduce --backend`. Without torch, which takes seconds to import."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inagg_baselines.theory import Racks, Theory, hierarchical, ring, server, sharded_server

RING, HIERARCHICAL, SHARDED_SERVER, SERVER = "gloo", "gloo-hierarchical", "gloo-server", "gloo-server-1"


@dataclass(frozen=True)
class Baseline:
    """about: for a list of choices. theory: of the number of ranks, and of the ranks in each rack."""

    about: str
    theory: Callable[[int, Racks], Theory]


BASELINES: Mapping[str, Baseline] = {
    RING: Baseline("a ring over the ranks", ring),
    HIERARCHICAL: Baseline(
        "reduce in each rack, all-reduce of the racks' first ranks, broadcast in each rack", hierarchical
    ),
    SHARDED_SERVER: Baseline("a parameter server of which each rank has a shard", sharded_server),
    SERVER: Baseline("a parameter server in the first rank", server),
}
