# SPDX-License-Identifier: Apache-2.0
"""Names of ranks in messages, the same everywhere: "rank 1 (h2, 10.0.0.2)"."""

from collections.abc import Mapping, Sequence


def place(host: str | None, ip: str | None) -> str:
    """Where a rank runs: "h2, 10.0.0.2", without what is unknown."""
    return ", ".join(known for known in (host, ip) if known)


def name_ranks(ranks: Sequence[int], places: Mapping[int, str] | None = None) -> str:
    """ "rank 1 (h2, 10.0.0.2)" or "ranks 1 (h2, 10.0.0.2), 3". places: rank -> `place`, of those that are known."""
    known = places or {}
    names = (f"{rank} ({known[rank]})" if known.get(rank) else str(rank) for rank in ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(names)}"
