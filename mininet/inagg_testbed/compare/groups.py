# SPDX-License-Identifier: Apache-2.0
"""The groups of a mesh: what each sums and sends in a step, and what theory says of all together."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from inagg.counters import REDUCTIONS
from inagg_testbed.compare.ways import Way

HEADER = ("with", "group", "ranks", "what", "path", "calls/step", "MB/step", "ms/step")


class GroupFigures(BaseModel):
    """Collectives of one kind in a dimension of the mesh: means over the ranks that call it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="dp, tp or pp")
    ranks: int
    kind: str = Field(description="all_reduce, send, ...")
    path: str = Field(description="switch, server, ...; of what gloo does: gloo")
    calls: float = Field(description="in a step")
    bytes: float = Field(description="of their tensors, in a step")
    ms: float = Field(description="that they took in a step, those at the same time counted each")

    @property
    def row(self) -> tuple[str, ...]:
        """The columns of `HEADER` but the first."""
        return (
            self.name,
            str(self.ranks),
            self.kind,
            self.path,
            f"{self.calls:.3g}",
            f"{self.bytes / 1e6:.3g}",
            f"{self.ms:.0f}",
        )


def group_figures(of_ranks: Sequence[Sequence[Mapping[str, Any]]], steps: int) -> list[GroupFigures]:
    """of_ranks: of each rank its groups, each with name, ranks, path, and calls by kind."""
    seen: dict[tuple[str, int, str], list[Mapping[str, float]]] = {}
    for groups in of_ranks:
        for name, ranks, kind, call in _calls(groups):
            seen.setdefault((name, ranks, kind), []).append(call)
    paths: dict[str, set[str]] = {}
    for group in (group for groups in of_ranks for group in groups):
        paths.setdefault(group["name"], set()).add("gloo" if group["path"] == "inner" else group["path"])
    return [
        GroupFigures(
            name=name,
            ranks=ranks,
            kind=kind,
            path=", ".join(sorted(paths[name])) if kind in REDUCTIONS else "gloo",
            calls=statistics.fmean(call["ended"] for call in calls) / steps,
            bytes=statistics.fmean(call["ended_bytes"] for call in calls) / steps,
            ms=1e3 * statistics.fmean(call["seconds"] for call in calls) / steps,
        )
        for (name, ranks, kind), calls in seen.items()
    ]


def theory_of_calls(
    of_ranks: Sequence[Sequence[Mapping[str, Any]]], way: Way, steps: int
) -> tuple[float, float]:
    """Bytes on the busiest link in a step without headers, and messages that wait for one another in a sum.

    of_ranks: as of `group_figures`; sums by ring or inagg.
    """
    totals, messages, sums = [0.0], 0.0, 0.0
    for groups in of_ranks:
        sent = received = 0.0
        for name, ranks, kind, call in _calls(groups):
            if kind in REDUCTIONS:
                one, element_bytes = way.theory(ranks, [range(ranks)])
                if way.feedback and name != "dp":
                    element_bytes = 4  # error feedback, and its narrow lanes, are for gradients
                size = one.share * element_bytes / 4 * call["ended_bytes"]
                sent, received = sent + size, received + size
                messages, sums = messages + one.steps * call["ended"], sums + call["ended"]
            elif kind == "send":
                sent += call["ended_bytes"]
            elif kind == "recv":
                received += call["ended_bytes"]
        totals.append(max(sent, received) / steps)
    return max(totals), messages / max(sums, 1)


def _calls(groups: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, str, Mapping[str, float]]]:
    """The name of a group, its ranks, and a kind of its calls, of groups of several ranks."""
    for group in groups:
        for kind, call in group["calls"].items():
            if group["ranks"] > 1 and call["ended"]:
                yield group["name"], group["ranks"], kind, call
