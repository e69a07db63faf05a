# SPDX-License-Identifier: Apache-2.0
"""The page of a demo, or of several beside each other."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from inagg_testbed.demo.figures import QUICK, TABLE_HEADER, table_rows, unmeasured, verdicts
from inagg_testbed.demo.run import INAGG_32, DemoResult, TrainingResult, summary
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.fabric import STAR
from inagg_testbed.report.parts import (
    BYTES_OF_A_RUN,
    SPREAD,
    Axis,
    Bars,
    BarSeries,
    Best,
    Definitions,
    FabricPicture,
    Mark,
    Page,
    Panel,
    Part,
    Plot,
    Section,
    Series,
    Table,
    Text,
    Verdict,
    counts,
    listed,
    megabytes,
    spread,
)
from inagg_testbed.report.record import Run, first_problem

_RESULT = TypeAdapter(DemoResult)
_BEST: dict[str, Best] = {"step ms": "min", "comm ms": "min", "MB sent": "min"}


@dataclass(frozen=True)
class _Demo:
    """A demo of the page."""

    run: Run
    result: DemoResult

    @property
    def trainings(self) -> list[tuple[str, TrainingResult]]:
        """Each training run with its label."""
        return [(self.run.named(one.spec.label), one) for one in self.result.runs]

    def named(self, texts: Sequence[str]) -> list[str]:
        """Sentences, with the demo's name if the page has several."""
        return [self.run.named(text) for text in texts]


def contents(runs: Sequence[Run]) -> Page:
    """The page of demos, without environment and data. Raises ConfigurationError for figures that are not a demo's."""
    demos = [_Demo(run, _result(run)) for run in runs]
    what = [one.result.demo for one in demos]
    links = ", ".join(dict.fromkeys(demo.link_name for demo in what))
    sections = [
        Section("What was run", [Text(text) for one in demos for text in one.named([_setting(one.result)])]),
        Section("Result", _result_parts(demos)),
        *(section for one in demos for section in _fault_section(one)),
        Section("Bytes on each link", [_fabric(one) for one in demos]),
        Section("Definitions", [Definitions(_DEFINITIONS)]),
    ]
    return Page(
        title="Training with gradients summed in the switch, compared with gloo",
        subtitle=f"{counts(one.workers for one in what)} workers, {links} links, "
        f"{counts(one.steps for one in what)} steps",
        summary=[text for one in demos for text in one.named(list(_sentences(one.result)))],
        verdicts=[
            Verdict(good, one.run.named(text))
            for one in demos
            for good, text in verdicts(summary(one.result))
        ],
        notices=[text for one in demos for text in one.named(_notices(one.result))],
        sections=sections,
        environment=[
            (one.run.named(name), value) for one in demos for name, value in _environment(one.result)
        ],
    )


def _result(run: Run) -> DemoResult:
    try:
        return _RESULT.validate_python(run.record.figures)
    except ValidationError as error:
        raise ConfigurationError(run.named(f"not the figures of a demo: {first_problem(error)}")) from error


def _notices(result: DemoResult) -> list[str]:
    quick = [f"{QUICK}."] if result.demo.quick else []
    note = unmeasured(result.runs)
    return quick if note is None else [*quick, f"{note}."]


def _sentences(result: DemoResult) -> Iterator[str]:
    """Three sentences: time, bytes, accuracy."""
    undisturbed = [run for run in result.runs if not run.spec.loss and run.spec.fault is None] or result.runs
    reference = next((run for run in undisturbed if run.spec.backend == "gloo"), undisturbed[0])
    others = [run for run in undisturbed if run is not reference]
    step = reference.step_ms_p50
    share = (
        f"{step:.0f} ms with {reference.spec.label}, {reference.comm_ms_p50 / step:.0%} of it communication"
    )
    gains = [
        f"{run.step_ms_p50:.0f} ms with {run.spec.label} ({step / run.step_ms_p50:.2f}x as fast)"
        for run in others
    ]
    yield f"A step takes {listed([share, *gains])}."
    sent = [
        f"{megabytes(run.bytes_sent_per_worker)} MB with {run.spec.label}" for run in [reference, *others]
    ]
    yield f"In all steps each worker sends {listed(sent)}."
    accuracies = [run.accuracy for run in result.runs]
    least, most = min(accuracies), max(accuracies)
    found = f"{least:.2%}" if least == most else f"from {least:.2%} to {most:.2%}"
    yield f"After {result.demo.steps} steps the accuracy on the test digits is {found}."


def _setting(result: DemoResult) -> str:
    """What was run, in words."""
    demo = result.demo
    text = (
        f"The same training {len(result.runs)} times on one network: scikit-learn's handwritten digits, a convolutional"
        f" net of {result.runs[0].elements:,} parameters, DistributedDataParallel with fixed seeds, {demo.workers}"
        " workers, each in a Mininet host. "
    )
    if demo.topology == STAR:
        text += "One switch connects all hosts"
    else:
        text += f"{len(demo.fabric.switches)} switches ({demo.topology}) connect the hosts"
    text += (
        ", with unshaped links."
        if demo.link_name == "unshaped"
        else (f", with links of {demo.link_name} in each direction.")
    )
    if demo.topology != STAR:
        text += f" Links between switches: {demo.uplink_name or demo.link_name}. Ranks are placed {demo.rank_order}."
    if demo.switch == "bridge":
        return text
    text += " With gloo the hosts pass gradients around a ring, " + (
        "through that switch."
        if demo.gloo_over == "switch"
        else "through Linux bridges with links of the same rates, because switches in user space would slow gloo down."
    )
    return (
        text
        + " With inagg each worker sends its gradients once, "
        + (
            "and the P4 program in the switch adds them and multicasts the sum."
            if demo.topology == STAR
            else "and the P4 program in each switch adds what comes from below, passes one sum up, and multicasts the"
            " result down."
        )
    )


def _result_parts(demos: Sequence[_Demo]) -> list[Part]:
    several = len(demos) > 1
    rows = [[*([one.run.name] if several else []), *row] for one in demos for row in table_rows(one.result)]
    header = [*(["demo"] if several else []), *TABLE_HEADER]
    trainings = [pair for one in demos for pair in one.trainings]
    return [
        Table.of_texts("Each training run", header, rows, texts=["training", "weights"], best=_BEST),
        _steps(trainings),
        *_losses(trainings),
    ]


def _steps(trainings: Sequence[tuple[str, TrainingResult]]) -> Bars:
    ends = [spread(run.step_ms) for _, run in trainings]
    return Bars(
        "Time of a step",
        "median time of a step (ms)",
        [label for label, _ in trainings],
        [
            BarSeries("computation", [run.step_ms_p50 - run.comm_ms_p50 for _, run in trainings]),
            BarSeries(
                "communication",
                [run.comm_ms_p50 for _, run in trainings],
                [low for low, _ in ends],
                [high for _, high in ends],
            ),
        ],
        stacked=True,
        about=f"Error bars, of the whole step: {SPREAD}.",
    )


def _losses(trainings: Sequence[tuple[str, TrainingResult]]) -> list[Plot]:
    """Loss against steps and against time: step by step the curves agree, in time they differ."""
    return [
        Plot(
            "Training loss by step",
            Axis("step"),
            Axis("training loss, mean over ranks", log=True),
            [Series(label, list(range(1, len(run.losses) + 1)), run.losses) for label, run in trainings],
            about="Curves that agree lie on top of each other: switch some off to see the others.",
        ),
        Plot(
            "Training loss by time",
            Axis("time in steps (s)", zero=True),
            Axis("training loss, mean over ranks", log=True),
            [
                Series(label, list(itertools.accumulate(ms / 1e3 for ms in run.step_ms)), run.losses)
                for label, run in trainings
            ],
        ),
    ]


def _fault_section(one: _Demo) -> list[Section]:
    faulty = next((run for run in one.result.runs if run.spec.fault is not None), None)
    if faulty is None or faulty.spec.fault is None:
        return []
    part, steps = faulty.spec.fault.part, faulty.spec.fault.steps
    compared = [run for run in one.result.runs if run.spec == INAGG_32] + [faulty]
    text = (
        f"In one run {part} is killed when rank 0 has done step {', '.join(map(str, steps))}, and started again at"
        " once. The ranks freeze, hand each other results that only some of them have, and go on with the same sums:"
        " there, or where on_path_loss says."
    )
    plot = Plot(
        "Time of each step",
        Axis("step"),
        Axis("time of the step (s)", zero=True),
        [
            Series(
                one.run.named(run.spec.label),
                list(range(1, len(run.step_ms) + 1)),
                [ms / 1e3 for ms in run.step_ms],
            )
            for run in compared
        ],
        [Mark(step, f"{part} is killed") for step in steps],
    )
    return [Section(one.run.named("A dead switch"), [Text(text), plot])]


def _fabric(one: _Demo) -> FabricPicture:
    return FabricPicture(
        one.run.named("MB on each link"),
        one.result.demo.fabric,
        [Panel(label, run.links) for label, run in one.trainings],
        BYTES_OF_A_RUN,
    )


def _environment(result: DemoResult) -> Iterator[tuple[str, str]]:
    settings = result.settings
    yield "switch", result.demo.switch
    yield "links", settings["link"]
    if "uplink" in settings:
        yield "links between switches", settings["uplink"]
    if "impair" in settings:
        yield "impaired", " ".join(settings["impair"])
    if settings["words"]:
        yield "window", f"{settings['slots']} packets of {settings['words'] * 256} bytes of gradients"
    yield "took", f"{result.seconds:.0f} s"
    yield "logs", str(result.logs)


_DEFINITIONS = (
    (
        "step ms",
        "Median over the steps of the slowest rank's step: zero_grad, forward, backward and optimizer update. Backward"
        " returns when all gradients are reduced.",
    ),
    (
        "compute ms",
        "The same without communication. At every tenth step each rank also runs forward and backward on the same batch"
        " under no_sync() and discards the gradients. The figure is the median of the slowest rank's time, plus the"
        " median update.",
    ),
    (
        "comm ms",
        "The difference of the two: what the all-reduce adds to a step. It includes the all-reduce's CPU time and"
        " excludes what overlaps with backward. It is defined alike for every backend.",
    ),
    (
        "step gain, comm gain",
        "gloo's step ms, and comm ms, divided by the run's: the speedup of the whole step, and of communication only.",
    ),
    (
        "MB sent",
        "What the host's interfaces sent during all steps, in 10^6 bytes, headers, acknowledgements and retransmissions"
        " included; mean over the workers.",
    ),
    (
        "resent",
        "Retransmitted packets of all workers together: TCP segments for gloo, contributions for inagg.",
    ),
    ("weights", "First digits of the SHA-256 of all final weights. All ranks of a run have the same hash."),
    ("inagg:32, inagg:16", "Gradients travel as block floating point in lanes of 32 or 16 bits."),
    (
        "1% loss",
        "Probability with which the switch drops each packet that comes from a worker's port and, independently, each"
        " packet that goes to it. The switch adds integers, so retransmissions cannot change a bit of the result.",
    ),
)
