# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison, or of several beside each other."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from inagg_testbed.compare.diagnosis import diagnoses
from inagg_testbed.compare.figures import (
    HEADER,
    ComparisonFigures,
    Interval,
    RunFigures,
    group_table,
    table,
)
from inagg_testbed.compare.groups import HEADER as GROUP_HEADER
from inagg_testbed.compare.plan import MODELS
from inagg_testbed.compare.prediction import PREDICTED, payoffs, predictions
from inagg_testbed.compare.timeline import pictures
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.traffic import LinkBytes
from inagg_testbed.report.parts import (
    BYTES_OF_A_RUN,
    Axis,
    Bars,
    BarSeries,
    Best,
    Definitions,
    FabricPicture,
    Page,
    Panel,
    Part,
    Plot,
    Section,
    Series,
    Table,
    Text,
    counts,
    listed,
    megabytes,
)
from inagg_testbed.report.record import Run, first_problem

_BEST: dict[str, Best] = {"step ms": "min", "wait ms": "min", "MB/step": "min", "time s": "min"}


@dataclass(frozen=True)
class _Comparison:
    """A comparison of the page."""

    run: Run
    figures: ComparisonFigures

    @property
    def first(self) -> list[tuple[str, RunFigures]]:
        """The first training under each architecture, with its label."""
        return [(self.run.named(way), self.figures.of(way)[0]) for way in self.figures.ways]

    @property
    def title(self) -> str:
        """What was trained."""
        settings = self.figures.settings
        mesh = "" if settings.get("mesh") is None else f" on {settings['mesh']}"
        return f"{settings['model'] or ' '.join(settings['program'])}{mesh}"


def contents(runs: Sequence[Run]) -> Page:
    """The page of comparisons, without environment and data. Raises ConfigurationError for other figures."""
    found = [_Comparison(run, _figures(run)) for run in runs]
    settings = [one.figures.settings for one in found]
    return Page(
        title=f"{listed(list(dict.fromkeys(one.title for one in found)))} under several architectures",
        subtitle=f"{counts(each['workers'] for each in settings)} workers, "
        f"{', '.join(dict.fromkeys(each['link'] for each in settings))} links, "
        f"{', '.join(dict.fromkeys(each['topology'] for each in settings))}",
        summary=[one.run.named(text) for one in found for text in _sentences(one.figures)],
        sections=[
            Section("Result", _result_parts(found)),
            Section(
                "What limits a step", [Text(one.run.named(text)) for one in found for text in _limits(one)]
            ),
            *_predicted(found),
            *_timelines([pair for one in found for pair in one.first]),
            Section("Training", _curves([pair for one in found for pair in one.first])),
            Section("Bytes on each link", [_fabric(one) for one in found]),
            Section("Definitions", [Definitions(_DEFINITIONS)]),
        ],
        environment=[
            (one.run.named(name), value) for one in found for name, value in _environment(one.figures)
        ],
    )


def _figures(run: Run) -> ComparisonFigures:
    try:
        figures = ComparisonFigures.model_validate(run.record.figures)
    except ValidationError as error:
        raise ConfigurationError(
            run.named(f"not the figures of a comparison: {first_problem(error)}")
        ) from error
    if not figures.runs:
        raise ConfigurationError(run.named("a comparison of which nothing has run"))
    return figures


def _sentences(figures: ComparisonFigures) -> Iterator[str]:
    """Three: time, bytes, and how good the models are."""
    first = figures.of(figures.ways[0])[0]
    steps = []
    for way in figures.ways:
        ratio = figures.gain(way)
        gained = "" if way == first.way or ratio is None else f" ({ratio:.2f}x as fast as {first.way})"
        if not figures.has_target:
            steps.append(f"{Interval.of([run.step_ms for run in figures.of(way)]):.0f} ms with {way}{gained}")
        elif ratio is None:
            steps.append(f"never with {way}")
        else:
            times = [run.reached_s or math.nan for run in figures.of(way)]
            steps.append(f"after {Interval.of(times):.1f} s with {way}{gained}")
    if figures.has_target:
        yield f"The training reaches {figures.settings['until']} {listed(steps)}."
    else:
        yield f"A step takes {listed(steps)}."
    moved = [f"{megabytes(figures.of(way)[0].busiest_link_bytes)} MB with {way}" for way in figures.ways]
    yield f"In a step the busiest link of a host carries {listed(moved)}."
    judged = [
        (way, run.quality) for way in figures.ways for run in figures.of(way)[:1] if run.quality is not None
    ]
    if judged:
        values = [f"{value:.4g} with {way}" for way, value in judged]
        yield f"The model ends with {_quality(figures)} {listed(values)}."


def _quality(figures: ComparisonFigures) -> str:
    """What a model has."""
    known = MODELS.get(figures.settings["model"])
    return (
        "a quality of"
        if known is None
        else {"accuracy": "an accuracy of", "loss": "a loss of"}[known.quality.name]
    )


def _limits(one: _Comparison) -> Iterator[str]:
    for diagnosis in diagnoses(one.figures):
        yield f"{diagnosis}. What helps most: {diagnosis.remedy}" if diagnosis.causes else f"{diagnosis}."


def _predicted(found: Sequence[_Comparison]) -> Iterator[Section]:
    rows = [(one.run.named(each.way), *each.row) for one in found for each in predictions(one.figures)]
    if rows:
        table = Table.of_texts(
            "A step, by theory and as measured", ("with", *PREDICTED), rows, texts=["with"]
        )
        texts = [Text(f"{one.run.named(text)}.") for one in found for text in payoffs(one.figures)]
        yield Section("What theory predicts", [table, *texts])


def _result_parts(found: Sequence[_Comparison]) -> list[Part]:
    several = len(found) > 1
    header = [
        *(["comparison"] if several else []),
        *HEADER,
    ]
    rows = [[*([one.run.name] if several else []), *row] for one in found for row in table(one.figures)]
    of_groups = [(one.run.named(way), *row) for one in found for way, *row in group_table(one.figures)]
    titles = ("with", "group", "what", "path")
    return [
        Table.of_texts("Each architecture", header, rows, texts=["with"], best=_BEST),
        *([Table.of_texts("Groups of the mesh", GROUP_HEADER, of_groups, texts=titles)] if of_groups else []),
        _steps([(one.run.named(way), one.figures.of(way)) for one in found for way in one.figures.ways]),
    ]


def _steps(ways: Sequence[tuple[str, Sequence[RunFigures]]]) -> Bars:
    """What a step is made of, means over the repeats; error bars of the whole step."""

    def mean(name: str) -> list[float]:
        return [sum(getattr(run.parts_ms, name) for run in runs) / len(runs) for _, runs in ways]

    whole = [
        Interval.of([run.parts_ms.computation + run.parts_ms.waited + run.parts_ms.other for run in runs])
        for _, runs in ways
    ]
    ends = [
        (None, None) if one.half_width is None else (one.mean - one.half_width, one.mean + one.half_width)
        for one in whole
    ]
    return Bars(
        "What a step is made of",
        "mean time of a step (ms)",
        [label for label, _ in ways],
        [
            BarSeries("ran", mean("ran")),
            BarSeries("queued for a processor", mean("queued")),
            BarSeries("waited for sums or weights", mean("waited")),
            BarSeries("slept otherwise", mean("other"), [low for low, _ in ends], [high for _, high in ends]),
        ],
        stacked=True,
        about="Error bars, of the whole step: the 95% confidence interval of the repeats' means.",
    )


def _timelines(trainings: Sequence[tuple[str, RunFigures]]) -> Iterator[Section]:
    """A step of the first training under each architecture, if there is one."""
    steps = [(label, run.timeline) for label, run in trainings if run.timeline is not None]
    if steps:
        yield Section("A step on each rank", pictures(steps))


def _curves(trainings: Sequence[tuple[str, RunFigures]]) -> list[Part]:
    """Loss against steps and against time, and how good the model is against time."""
    losses = Axis("training loss, mean over ranks", log=True)
    parts: list[Part] = [
        Plot(
            "Training loss by step", Axis("step"), losses, [_losses(*one, by_time=False) for one in trainings]
        ),
        Plot(
            "Training loss by time", Axis("time (s)", zero=True), losses, [_losses(*one) for one in trainings]
        ),
    ]
    judged = [
        Series(
            label,
            [time for _, time, _ in run.judged],
            [math.nan if value is None else value for _, _, value in run.judged],
        )
        for label, run in trainings
        if run.judged
    ]
    if judged:
        axis = Axis("accuracy, or loss, of rank 0's model")
        parts.append(Plot("On data that it is not trained with", Axis("time (s)", zero=True), axis, judged))
    return parts


def _losses(label: str, run: RunFigures, *, by_time: bool = True) -> Series:
    x = run.clock_s if by_time else list(range(2, len(run.losses) + 2))
    known = min(len(x), len(run.losses))
    return Series(label, x[:known], [math.nan if loss is None else loss for loss in run.losses[:known]])


def _fabric(one: _Comparison) -> FabricPicture:
    return FabricPicture(
        one.run.named("MB on each link"),
        one.figures.fabric,
        [
            Panel(label, [LinkBytes(link.lower, link.upper, link.up, link.down) for link in run.links])
            for label, run in one.first
        ],
        BYTES_OF_A_RUN,
    )


def _environment(figures: ComparisonFigures) -> Iterator[tuple[str, str]]:
    for name, value in figures.settings.items():
        if name not in ("model", "program") and value not in (None, []):
            yield name.replace("_", " "), " ".join(value) if isinstance(value, list) else str(value)


_DEFINITIONS = (
    ("step ms", "Median over the steps of the slowest rank's time between the ends of two optimizer steps."),
    (
        "compute ms",
        "The program's thread ran, or was ready to run while others had the processors. This and the other parts of a"
        " step are means over ranks and steps.",
    ),
    ("wait ms", "It slept while sums or exchanges of weights were under way."),
    (
        "comm. ms, overlap ms",
        "Sums or exchanges were under way; and the part of it that the program did not wait for.",
    ),
    ("CPU ms", "Processor time of all threads of all ranks."),
    (
        "MB/step",
        "On the busiest link of a host, in its busier direction, with headers and what was sent again.",
    ),
    ("bytes/theory", "The same divided by what the architecture must move, which has no headers."),
    (
        "end",
        "Accuracy or loss of the model at the end, on data that it is not trained with; of a program the mean loss of"
        " its last ten steps.",
    ),
    ("time s", "From the end of the first step to the target of --until, without the time of judging."),
    ("gain", "Over the first architecture, of the time to the target; without a target, of a step."),
)
