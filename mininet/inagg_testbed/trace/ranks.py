# SPDX-License-Identifier: Apache-2.0
"""Reads the files that ranks write for a trace (`inagg.tracing`), and puts them on one clock."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from inagg.spans import Span, Step, common_steps
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.report.record import read_document


class _Clock(BaseModel):
    model_config = ConfigDict(extra="forbid")

    offset_s: float
    error_s: float | None


class _Document(BaseModel):
    """rankR.json."""

    model_config = ConfigDict(extra="forbid")

    rank: int
    host: str
    pid: int
    machine: str
    clock: _Clock
    began_s: float
    ended_s: float
    steps: list[tuple[int, float, float, list[tuple[str, float, float, int]]]]


@dataclass(frozen=True)
class RankTrace:
    """A rank's steps by number, on the clock of the first rank's machine.

    error_s: by which times may be wrong; None: by what NTP or PTP leaves. began_s, ended_s: when the rank was traced.
    """

    rank: int
    host: str
    pid: int
    error_s: float | None
    began_s: float
    ended_s: float
    steps: dict[int, Step]


def read_ranks(folder: Path) -> list[RankTrace]:
    """What the ranks have written into a folder, by rank. Raises ConfigurationError."""
    paths = folder.glob("rank*.json")
    documents = (read_document(path, _Document, wrong="not the trace of a rank: {}") for path in paths)
    found = sorted(documents, key=lambda one: one.rank)
    if not found:
        raise ConfigurationError(
            f"no rank has written a trace into {folder}: its program made no group of inagg's (--take-over gloo takes "
            "groups over), or os._exit has ended it"
        )
    clocks = _clocks(found)
    return [_on_clock(one, clocks[one.machine]) for one in found]


def of_earlier_training(ranks: Sequence[RankTrace]) -> RankTrace | None:
    """A rank that ended before another one began: all ranks of one training run at the same time. None: none did."""
    first = min(ranks, key=lambda one: one.ended_s)
    return first if first.ended_s < max(one.began_s for one in ranks) else None


def last_steps(ranks: Sequence[RankTrace], count: int) -> list[int]:
    """The last steps that all ranks have, of `count` at most; the first two only if there are no others.

    Raises ConfigurationError if there is none.
    """
    common = common_steps(one.steps for one in ranks)
    if not common:
        few = min(ranks, key=lambda one: len(one.steps))
        raise ConfigurationError(
            f"the ranks have no step in common: rank {few.rank} has {len(few.steps)} (a step ends when an optimizer of "
            "torch.optim returns from step)"
        )
    return common[-count:]


def _clocks(found: Sequence[_Document]) -> dict[str, _Clock]:
    """Of each machine, its clock to that of the first rank's machine, which is right. Ranks of a machine share it."""
    best: dict[str, _Clock] = {}
    for one in sorted(found, key=lambda one: math.inf if one.clock.error_s is None else one.clock.error_s):
        best.setdefault(one.machine, one.clock)
    first = best[found[0].machine]
    return {
        machine: _Clock(offset_s=clock.offset_s - first.offset_s, error_s=_sum(clock.error_s, first.error_s))
        for machine, clock in best.items()
    } | {found[0].machine: _Clock(offset_s=0.0, error_s=0.0)}


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _on_clock(found: _Document, clock: _Clock) -> RankTrace:
    ahead_s = clock.offset_s
    steps = {
        number: Step(
            number,
            begin_s + ahead_s,
            end_s + ahead_s,
            [Span(kind, begin + ahead_s, end + ahead_s, size) for kind, begin, end, size in spans],
        )
        for number, begin_s, end_s, spans in found.steps
    }
    lasted = found.began_s + ahead_s, found.ended_s + ahead_s
    return RankTrace(found.rank, found.host, found.pid, clock.error_s, *lasted, steps)
