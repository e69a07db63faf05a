# SPDX-License-Identifier: Apache-2.0
"""Reads the files that ranks write for a trace (`inagg.tracing`), and puts them on one clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from inagg.spans import Span, Step, common_steps
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.report.record import first_problem


class _Clock(BaseModel):
    model_config = ConfigDict(extra="forbid")

    offset_s: float
    error_s: float


class _Document(BaseModel):
    """rankR.json."""

    model_config = ConfigDict(extra="forbid")

    rank: int
    host: str
    pid: int
    clock: _Clock
    steps: list[tuple[int, float, float, list[tuple[str, float, float, int]]]]


@dataclass(frozen=True)
class RankTrace:
    """A rank's steps by number, on rank 0's clock. error_s: by which they may be wrong."""

    rank: int
    host: str
    pid: int
    error_s: float
    steps: dict[int, Step]


def read_ranks(folder: Path) -> list[RankTrace]:
    """What the ranks have written into a folder, by rank. Raises ConfigurationError."""
    ranks = sorted((_read(path) for path in folder.glob("rank*.json")), key=lambda one: one.rank)
    if not ranks:
        raise ConfigurationError(
            f"no rank has written a trace into {folder}: its program made no group of inagg's (--take-over gloo takes "
            "groups over), or os._exit has ended it"
        )
    return ranks


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


def _read(path: Path) -> RankTrace:
    try:
        found = _Document.model_validate_json(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigurationError(f"{path}: not the trace of a rank: {first_problem(error)}") from error
    ahead_s = found.clock.offset_s
    steps = {
        number: Step(
            number,
            begin_s + ahead_s,
            end_s + ahead_s,
            [Span(kind, begin + ahead_s, end + ahead_s, size) for kind, begin, end, size in spans],
        )
        for number, begin_s, end_s, spans in found.steps
    }
    return RankTrace(found.rank, found.host, found.pid, found.clock.error_s, steps)
