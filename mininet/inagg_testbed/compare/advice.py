# SPDX-License-Identifier: Apache-2.0
"""`inagg explain`: what limits the trainings of a run that is in a folder, and what to change, in order of gain."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from inagg.causes import LOSSY, WORTH_SAYING, gain
from inagg_contract.constants import ETHERNET_HEADER_BYTES
from inagg_testbed.compare.diagnosis import Diagnosis, Found, diagnoses
from inagg_testbed.compare.figures import ComparisonFigures
from inagg_testbed.compare.prediction import payoffs, predictions
from inagg_testbed.demo.run import Demo, DemoResult, TrainingResult
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.report.record import FILE, first_problem, read_document, read_record

_COMPARISON = "compare.json"


def advice(folder: Path) -> Iterator[str]:
    """Lines on a run of `inagg compare` or `inagg demo`. Raises ConfigurationError, which says what is missing."""
    if (folder / _COMPARISON).is_file():
        yield from _on_comparison(read_document(folder / _COMPARISON, ComparisonFigures))
        return
    if (folder / FILE).is_file():
        record = read_record(folder)
        if record.kind != "demo":
            raise ConfigurationError(
                f"{folder} has the figures of `inagg bench {record.kind}`, which has no training steps to explain"
            )
        try:
            result = TypeAdapter(DemoResult).validate_python(record.figures)
        except ValidationError as error:
            raise ConfigurationError(f"{folder / FILE}: {first_problem(error)}") from error
        yield from _on_demo(result)
        return
    if list(folder.glob("run-rank*.log")):
        raise ConfigurationError(
            f"{folder}: `inagg run` keeps logs, and no figures of steps. Let the program print(inagg.explain()) at its"
            " end, or train it with `inagg compare --model SCRIPT`"
        )
    raise ConfigurationError(
        f"{folder} has neither {_COMPARISON} of `inagg compare` nor {FILE} of `inagg demo`"
    )


def _on_comparison(comparison: ComparisonFigures) -> Iterator[str]:
    for diagnosis in diagnoses(comparison):
        yield from _on(diagnosis)
    if found := predictions(comparison):
        yield "theory:"
        yield from (f"  {prediction}" for prediction in found)
        yield from (f"  {text}" for text in payoffs(comparison))


def _on(diagnosis: Diagnosis) -> Iterator[str]:
    yield str(diagnosis)
    for number, cause in enumerate(diagnosis.causes, 1):
        yield f"  {number}. {cause.name}, up to {cause.gain:.2f}x: {cause.remedy}"


def _on_demo(result: DemoResult) -> Iterator[str]:
    for training in result.runs:
        yield from _on(_diagnose(result.demo, training))
    yield (
        "A demo tells computation, links and loss apart. `inagg compare --model digits-cnn` measures the rest: late"
        " ranks, round trips, the switch, processors."
    )


def _diagnose(demo: Demo, training: TrainingResult) -> Diagnosis:
    """Divide a step: what computes, what the link needs for the bytes that a host has sent, and the rest."""
    step = training.step_ms_p50
    if step <= 0:
        return Diagnosis(training.spec.label, (), 1.0)
    communication, size = training.comm_ms_p50, training.bytes_sent_per_worker
    link = LinkSpec.parse(demo.link_name, mtu=demo.mtu)
    transfers = max(1, len(training.step_ms) - 1)  # bytes are counted from the first step to the last
    link_ms = min(communication, 8e3 * size / transfers / link.rate_bps) if link.rate_bps else 0.0
    again = training.retransmits * (demo.mtu + ETHERNET_HEADER_BYTES) / max(size * demo.workers, 1)
    rest = "loss" if again > LOSSY else "other"
    times = {"computation": step - communication, "link": link_ms, rest: communication - link_ms}
    detail = {"loss": f" ({training.retransmits} packets sent again)"}
    found = [Found(name, ms / step, detail.get(name, "")) for name, ms in times.items()]
    causes = sorted((cause for cause in found if cause.share >= WORTH_SAYING), key=lambda cause: -cause.share)
    return Diagnosis(training.spec.label, tuple(causes), gain(communication / step))
