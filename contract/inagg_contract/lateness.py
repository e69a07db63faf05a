# SPDX-License-Identifier: Apache-2.0
"""Which ranks of a job the others wait for, and why: the same in the program, the controller and its page."""

import statistics
from collections.abc import Mapping
from typing import Any

# A rank that is less late than this share of the latest one is not named, nor one that is less late than _LEAST_S.
_WORTH_NAMING = 0.25
_LEAST_S = 0.001


def late_ranks(waits: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The ranks that others wait for, the latest first, and what makes them late.

    A rank is late by how much less it waits in a sum than the rank that waits most. The cause is data loading if the
    rank waits so much longer for its data loaders than half of the other ranks that this is at least half of its
    lateness; else the network, if that is true of its round-trip time; else computation. A long round trip makes all
    ranks wait, the rank itself too. So if it is twice that of half of the other ranks, it counts as lateness.

    Args:
        waits: rank -> ``sums``, and ``waited_s`` and ``loading_s`` in all of them, and ``rtt_s``.

    Returns:
        ``rank``, ``late_s`` a sum, and ``cause``: "computation", "data loading" or "network". Empty with fewer than
        two ranks, or if a rank has summed nothing.
    """
    if len(waits) < 2 or any(wait["sums"] < 1 for wait in waits.values()):
        return []
    means = {rank: wait["waited_s"] / wait["sums"] for rank, wait in waits.items()}
    loading = {rank: wait.get("loading_s", 0.0) / wait["sums"] for rank, wait in waits.items()}
    rtts = {rank: wait.get("rtt_s", 0.0) for rank, wait in waits.items()}
    found = []
    for rank, mean_s in means.items():
        late_s = max(means.values()) - mean_s
        round_trip_s = _excess(rtts, rank)
        if round_trip_s > rtts[rank] / 2:
            late_s = max(late_s, round_trip_s)
        if _excess(loading, rank) >= late_s / 2:
            cause = "data loading"
        else:
            cause = "network" if round_trip_s >= late_s / 2 else "computation"
        found.append({"rank": rank, "late_s": late_s, "cause": cause})
    found.sort(key=lambda one: one["late_s"], reverse=True)
    least_s = max(_LEAST_S, _WORTH_NAMING * found[0]["late_s"])
    return [one for one in found if one["late_s"] >= least_s]


def _excess(values: Mapping[int, float], rank: int) -> float:
    """How much larger a rank's value is than the median of the others."""
    return values[rank] - statistics.median_low(value for other, value in values.items() if other != rank)
