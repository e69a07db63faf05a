# SPDX-License-Identifier: Apache-2.0
"""Names of jobs and ranks in messages, the same everywhere: "job 7 (train.py)", "rank 1 (h2, 10.0.0.2)"."""

import re
from collections.abc import Mapping, Sequence

LONGEST_JOB_NAME = 200  # characters
LONGEST_HOST_NAME = 64


def place(host: str | None, ip: str | None) -> str:
    """Where a rank runs: "h2, 10.0.0.2", without what is unknown."""
    return ", ".join(known for known in (host, ip) if known)


def name_ranks(ranks: Sequence[int], places: Mapping[int, str] | None = None) -> str:
    """ "rank 1 (h2, 10.0.0.2)" or "ranks 1 (h2, 10.0.0.2), 3". places: rank -> `place`, of those that are known."""
    known = places or {}
    names = (f"{rank} ({known[rank]})" if known.get(rank) else str(rank) for rank in ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(names)}"


def name_job(number: int, name: str) -> str:
    """ "job 7 (train.py)", or "job 7" without a name."""
    return f"job {number} ({name})" if name else f"job {number}"


def job_name(text: str) -> str:
    """Any text as the name of a job: printable, and not too long."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:LONGEST_JOB_NAME]


def host_name(text: str) -> str:
    """Any text as the name of a host, made of letters, digits, dots, hyphens and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text).lstrip("._-")[:LONGEST_HOST_NAME]
