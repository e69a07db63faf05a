# SPDX-License-Identifier: Apache-2.0
"""What sums for a job. Needs only the standard library."""

from collections.abc import Sequence
from typing import Final, Literal, get_args

# leased: slots that the job leases in switches. shared: slots that jobs share, with servers behind them. server:
# servers in host memory alone.
Aggregation = Literal["leased", "shared", "server"]
LEASED: Final = "leased"
SHARED: Final = "shared"
SERVER: Final = "server"
# In the order in which a controller tries them for a job that leaves the choice to it.
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)

# What may sum for a job that has changed its way. inner: the ranks themselves, in rounds over gloo (docs/protocol.md,
# 5.8); no job begins so.
Summing = Literal[Aggregation, "inner"]
INNER: Final = "inner"
SUMMING: tuple[Summing, ...] = get_args(Summing)

# What a client asks for; auto: the first of AGGREGATIONS that there is for the job.
AskedAggregation = Literal[Aggregation, "auto"]
AUTO: Final = "auto"

# Whose servers: each worker's process serves a share, or those that operators have started and registered.
ServerKind = Literal["colocated", "registered"]
COLOCATED: Final = "colocated"
REGISTERED: Final = "registered"
# Colocated servers behind shared slots up to which the switch sends a rank no copy of its own server's results.
MOST_HOMES = 8


def uses_switches(aggregation: str) -> bool:
    """Whether switches sum for the job, or may."""
    return aggregation in (LEASED, SHARED)


def uses_servers(aggregation: str) -> bool:
    """Whether servers sum for the job, or may."""
    return aggregation in (SHARED, SERVER)


def changes_way(on_path_loss: Sequence[str]) -> bool:
    """Whether a job goes on elsewhere when what sums for it is lost."""
    return bool(on_path_loss) and on_path_loss[0] != "fail"
