# SPDX-License-Identifier: Apache-2.0
"""One step of a training on all ranks: what each did when, as `inagg.spans` has recorded it."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from inagg.spans import BACKWARD, EXCHANGE, FORWARD, OF_PROGRAM, OPTIMIZER, WAIT, Span, Step, common_steps
from inagg_testbed.report.parts import Span as Bar
from inagg_testbed.report.parts import Timeline, TimelineRow, megabytes

_MOST_ROWS = 8  # ranks of a picture
_FIRST = (
    FORWARD,
    BACKWARD,
    WAIT,
    "all_reduce",
    EXCHANGE,
    OPTIMIZER,
)  # of a legend: they have colours of their own


class SpanFigures(BaseModel):
    """Something that a rank did."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str = Field(description="forward, backward, wait, ..., or a collective such as all_reduce")
    begin_ms: float = Field(description="from the begin of the step on the first rank")
    end_ms: float
    bytes: int = Field(description="of a collective; else 0")


class StepTimeline(BaseModel):
    """A step whose length is the median of the last steps. All ranks have one clock."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: int = Field(description="from 0")
    ranks: list[list[SpanFigures]] = Field(description="by rank")


def read_steps(document: Sequence[Any]) -> dict[int, Step]:
    """The steps of `inagg.spans` that a rank has written, by number."""
    steps = (Step(*fields) for fields in document)
    return {step.number: step._replace(spans=[Span(*fields) for fields in step.spans]) for step in steps}


def typical(ranks: Mapping[int, Mapping[int, Step]]) -> StepTimeline | None:
    """The step of median length of those that all ranks have, without the first two.

    ranks: by rank the steps by number.
    """
    lengths = {
        number: max(steps[number].end_s - steps[number].begin_s for steps in ranks.values())
        for number in (common_steps(ranks.values()) if ranks else ())
    }
    if not lengths:
        return None
    median = statistics.median_low(lengths.values())
    chosen = next(number for number in lengths if lengths[number] == median)
    origin_s = min(steps[chosen].begin_s for steps in ranks.values())
    return StepTimeline(
        step=chosen,
        ranks=[
            [
                SpanFigures(
                    kind=span.kind,
                    begin_ms=1e3 * (span.begin_s - origin_s),
                    end_ms=1e3 * (span.end_s - origin_s),
                    bytes=span.size,
                )
                for span in sorted(ranks[rank][chosen].spans, key=lambda span: span.begin_s)
            ]
            for rank in sorted(ranks)
        ],
    )


def pictures(trainings: Sequence[tuple[str, StepTimeline]]) -> list[Timeline]:
    """A picture of each training's step. trainings: with their labels."""
    found = dict.fromkeys(
        span.kind for _, timeline in trainings for spans in timeline.ranks for span in spans
    )
    kinds = [kind for kind in _FIRST if kind in found] + [kind for kind in found if kind not in _FIRST]
    return [_picture(label, timeline, kinds) for label, timeline in trainings]


def _picture(label: str, timeline: StepTimeline, kinds: Sequence[str]) -> Timeline:
    shown = timeline.ranks[:_MOST_ROWS]
    rows = [TimelineRow(f"rank {rank}", [_bar(span) for span in spans]) for rank, spans in enumerate(shown)]
    about = "Of each rank the program, and below it the collectives that ended in the step."
    if len(shown) < len(timeline.ranks):
        about += f" The first {len(shown)} of {len(timeline.ranks)} ranks."
    return Timeline(f"{label}, step {timeline.step}", rows, about, kinds)


def _bar(span: SpanFigures) -> Bar:
    name = span.kind if span.kind in OF_PROGRAM else f"{span.kind} {megabytes(span.bytes)} MB"
    return Bar(name, span.kind, span.begin_ms, span.end_ms)
