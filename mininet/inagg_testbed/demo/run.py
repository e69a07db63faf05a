# SPDX-License-Identifier: Apache-2.0
"""`inagg demo`: the same training over gloo and through the switch, on one testbed; `train_digits` is the training.

summary.json has the settings and, for each run:
- step_ms_p50: median over the steps of the slowest rank's step (zero_grad, forward, backward with the all-reduce,
  update);
- comm_ms_p50: step_ms_p50 minus the compute time. Compute time is the median, over every tenth step, of the slowest
  rank's forward and backward under no_sync(), plus the median update. So communication is what the all-reduce adds to a
  step: it includes the all-reduce's CPU time and excludes what overlaps with backward. It is defined alike for every
  backend, and 0 if compute took longer than the step, as with few steps on a busy machine;
- bytes_sent_per_worker: mean over ranks of the bytes that the host's interface sent from the first step to the last
  (retransmissions and acknowledgements included);
- retransmits: packets retransmitted by all ranks together: TCP segments for gloo, contributions for inagg;
- fault, interruptions_s: only of a run in which a part was killed: what and when, and for each kill how much longer
  than the median the longest of the three steps after it took;
- speedup_comm: gloo's comm_ms_p50 divided by the run's. None if either is 0 (with one worker there is no communication,
  and the two medians differ only by noise).
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inagg_testbed.errors import ConfigurationError, WrongResultError
from inagg_testbed.network import traffic
from inagg_testbed.network.fabric import STAR, Fabric, RankOrder
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.requirements import SwitchKind
from inagg_testbed.network.switch_options import SwitchOptions
from inagg_testbed.network.testbed import GlooPath, Testbed, open_testbed
from inagg_testbed.network.traffic import LinkBytes
from inagg_testbed.network.training_run import OnProgress, follow_training, values_by_step
from inagg_testbed.network.workers import Event


@dataclass(frozen=True)
class Fault:
    """A part is killed, and started again at once, when rank 0 has done each of some steps.

    part: as `Testbed.restart`. steps: ascending.
    """

    part: str
    steps: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, demo_steps: int, fabric: Fabric) -> "Fault":
        """From "switch@20" or "switch@20,40", or "spine2@20" where there are several switches, or "controller@20".

        Raises ConfigurationError.
        """
        part, _, numbers = text.partition("@")
        known = ("controller", *(("switch",) if fabric.is_star else fabric.switches))
        words = numbers.split(",")
        if part not in known or not all(map(str.isdecimal, words)):
            raise ConfigurationError(
                f"--fault {text}: must be like {known[-1]}@20 or {known[-1]}@20,40; parts: {', '.join(known)}"
            )
        steps = tuple(sorted({int(word) for word in words}))
        if not 1 <= steps[0] <= steps[-1] < demo_steps:
            raise ConfigurationError(
                f"--fault {text}: steps must be from 1 to {demo_steps - 1}, of the {demo_steps} steps of a run"
            )
        return cls(part, steps)


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """One training run. lane_bits None: gloo."""

    name: str
    backend: str
    lane_bits: int | None = None
    loss: float = 0.0
    fault: Fault | None = None

    @property
    def label(self) -> str:
        """Name of the run in tables and plots."""
        text = self.backend if self.lane_bits is None else f"{self.backend}:{self.lane_bits}"
        if self.fault is not None:
            return f"{text}, {self.fault.part} killed"
        return text if self.loss == 0 else f"{text}, {self.loss:.0%} loss"


GLOO = TrainingSpec(name="gloo", backend="gloo")
INAGG_32 = TrainingSpec(name="inagg32", backend="inagg", lane_bits=32)
INAGG_16 = TrainingSpec(name="inagg16", backend="inagg", lane_bits=16)
INAGG_32_LOSS = TrainingSpec(name="inagg32-loss", backend="inagg", lane_bits=32, loss=0.01)
ALL_RUNS = (GLOO, INAGG_32, INAGG_16, INAGG_32_LOSS)


@dataclass(frozen=True, kw_only=True)
class Demo:
    """What to run."""

    switch: SwitchKind = "model"
    workers: int = 4
    topology: str = STAR
    rank_order: RankOrder = "contiguous"
    link_name: str = "100mbit"
    uplink_name: str | None = None  # None: as link_name
    mtu: int = 1500
    steps: int = 120
    quick: bool = False  # too few steps for meaningful figures
    runs: Sequence[TrainingSpec] = ALL_RUNS
    program: Path | None = None
    threads: int | None = None  # of each switch; None: it chooses
    impair: tuple[str, ...] = ()  # as SwitchOptions.impair

    @property
    def fabric(self) -> Fabric:
        """Switches and links. Raises ConfigurationError."""
        return Fabric.parse(self.topology, hosts=self.workers, rank_order=self.rank_order)

    @property
    def gloo_over(self) -> GlooPath:
        """What gloo's packets cross: in a tree of switch processes, bridges with links of the same rates."""
        return "switch" if self.fabric.is_star or self.switch == "bridge" else "bridge"

    @property
    def uplink(self) -> LinkSpec:
        """The links between switches. Raises ConfigurationError."""
        return LinkSpec.parse(self.uplink_name or self.link_name, mtu=self.mtu)


@dataclass
class TrainingResult:
    """Figures of one run. step_ms: each step's slowest rank; losses: each step's mean over ranks; links: bytes on each
    link from the start of the ranks to their end."""

    spec: TrainingSpec
    accuracy: float
    weights_sha256: str
    step_ms: list[float]
    compute_ms: float
    losses: list[float]
    bytes_sent_per_worker: int
    retransmits: int
    elements: int
    links: list[LinkBytes] = field(default_factory=list)

    @property
    def step_ms_p50(self) -> float:
        """Median of step_ms."""
        return statistics.median(self.step_ms)

    @property
    def interruptions_s(self) -> list[float]:
        """For each kill how much longer than the median the longest of the three steps after it was. The kill comes a
        little later than the end of its step."""
        steps = () if self.spec.fault is None else self.spec.fault.steps
        longest = [max(self.step_ms[step : step + 3]) for step in steps]
        return [max(0.0, ms - self.step_ms_p50) / 1e3 for ms in longest]

    @property
    def comm_ms_p50(self) -> float:
        """Median step minus compute, at least 0."""
        return max(0.0, self.step_ms_p50 - self.compute_ms)


@dataclass
class DemoResult:
    """All runs, the folder of their logs, and their duration."""

    demo: Demo
    runs: list[TrainingResult]
    logs: Path
    run_id: str
    seconds: float
    settings: dict[str, Any] = field(default_factory=dict)


def run_demo(
    demo: Demo,
    results_root: Path,
    *,
    on_stage: Callable[[str], Any],
    on_progress: OnProgress,
    around: Callable[[Testbed], AbstractContextManager[object]] = nullcontext,
) -> DemoResult:
    """Do all runs on one testbed. `on_progress` gets a run's label, steps done, all steps, and a note.

    around: a context of the testbed in which the runs are done.

    Raises LauncherError; WrongResultError if ranks end with different weights.
    """
    began = time.monotonic()
    link = LinkSpec.parse(demo.link_name, mtu=demo.mtu)
    with open_testbed(
        fabric=demo.fabric,
        link=link,
        uplink=demo.uplink,
        gloo_over=demo.gloo_over,
        results_root=results_root,
        switch=demo.switch,
        program=demo.program,
        switch_options=SwitchOptions(threads=demo.threads, impair=demo.impair),
        on_stage=on_stage,
    ) as testbed:
        with around(testbed):
            runs = [train(testbed, spec, demo.steps, on_progress) for spec in demo.runs]
        settings = {
            "link": testbed.network.spec.description,
            **({} if demo.fabric.is_star else {"uplink": testbed.network.uplink.description}),
            **({"impair": list(demo.impair)} if demo.impair else {}),
            "slots": testbed.slots(),
            "words": testbed.controller.health().words
            if testbed.controller is not None and testbed.has_switch
            else None,
        }
        logs, run_id = testbed.results, testbed.run.id
    return DemoResult(demo, runs, logs, run_id, time.monotonic() - began, settings)


def train(testbed: Testbed, spec: TrainingSpec, steps: int, on_progress: OnProgress) -> TrainingResult:
    """Do one run on a testbed that is up. Raises LauncherError."""
    on_progress(spec.label, 0, steps, "starting")
    command = [sys.executable, "-m", "inagg_testbed.demo.train_digits", "--backend", spec.backend]
    command += ["--steps", str(steps), "--events", "{events}"]
    environment = {} if spec.lane_bits is None else {"INAGG_LANE_BITS": str(spec.lane_bits)}
    before = traffic.read(testbed.network)
    fault = spec.fault

    def on_step(step: int) -> None:
        if fault is not None and step in fault.steps:
            testbed.restart(fault.part)

    with testbed.loss(spec.loss):
        events = follow_training(
            testbed,
            command,
            name=spec.name,
            label=spec.label,
            steps=steps,
            on_progress=on_progress,
            on_step=on_step,
            environment=environment,
        )
    result = summarise_run(spec, events)
    result.links = traffic.crossed(testbed.network.fabric, before, traffic.read(testbed.network))
    on_progress(spec.label, steps, steps, f"accuracy {result.accuracy:.1%}")
    return result


def summarise_run(spec: TrainingSpec, events: Sequence[tuple[int, Event]]) -> TrainingResult:
    """Compute a run's figures from its events. Raises WrongResultError."""
    ends = {rank: event for rank, event in events if event["event"] == "end"}
    hashes = {event["weights_sha256"] for event in ends.values()}
    if len(hashes) != 1:
        raise WrongResultError(f"{spec.label}: the ranks ended with {len(hashes)} different sets of weights")
    steps = values_by_step(events, "step", "seconds")
    losses = values_by_step(events, "step", "loss")
    updates = [event["update_seconds"] for _, event in events if event["event"] == "step"]
    compute = statistics.median(max(found) for found in values_by_step(events, "compute", "seconds").values())
    return TrainingResult(
        spec=spec,
        accuracy=ends[0]["accuracy"],
        weights_sha256=hashes.pop(),
        step_ms=[max(found) * 1e3 for _, found in sorted(steps.items())],
        compute_ms=(compute + statistics.median(updates)) * 1e3,
        losses=[statistics.fmean(found) for _, found in sorted(losses.items())],
        bytes_sent_per_worker=round(statistics.fmean(event["bytes_sent"] for event in ends.values())),
        retransmits=sum(event["retransmits"] for event in ends.values()),
        elements=next(event["elements"] for _, event in events if event["event"] == "start"),
    )


def links_document(result: DemoResult) -> dict[str, Any]:
    """The contents of links.json: the fabric, and by run the bytes on each link.

    lower is a host or a port of the lower switch, upper a port of a switch; up are the bytes towards upper, down those
    from it. Bytes are the kernel's counts at the upper end, from the start of the ranks to their end, with Ethernet
    headers; gloo's own links count with the fabric's.
    """
    demo = result.demo
    return {
        "topology": demo.topology,
        "rank_order": demo.rank_order,
        "link": demo.link_name,
        "uplink": None if demo.fabric.is_star else demo.uplink_name or demo.link_name,
        "gloo_over": demo.gloo_over,
        "runs": [
            {"run": run.spec.label, "links": [asdict(link) for link in run.links]} for run in result.runs
        ],
    }


def _speedup(gloo: TrainingResult | None, run: TrainingResult) -> float | None:
    if gloo is None or gloo.comm_ms_p50 == 0 or run.comm_ms_p50 == 0:
        return None
    return gloo.comm_ms_p50 / run.comm_ms_p50


def summary(result: DemoResult) -> dict[str, Any]:
    """The contents of summary.json; the module docstring defines the fields.

    speedup_comm is None without a gloo run, weights_identical_under_loss without both runs it compares.
    weights_identical_after_fault is there if a part was killed.
    """
    by_name = {run.spec.name: run for run in result.runs}
    gloo, lossless, lossy = (by_name.get(spec.name) for spec in (GLOO, INAGG_32, INAGG_32_LOSS))
    runs = [
        {
            "backend": run.spec.backend,
            "lane_bits": run.spec.lane_bits,
            "loss": run.spec.loss,
            **({} if run.spec.fault is None else {"fault": asdict(run.spec.fault)}),
            **({} if run.spec.fault is None else {"interruptions_s": run.interruptions_s}),
            "accuracy": run.accuracy,
            "step_ms_p50": run.step_ms_p50,
            "comm_ms_p50": run.comm_ms_p50,
            "bytes_sent_per_worker": run.bytes_sent_per_worker,
            "retransmits": run.retransmits,
            "weights_sha256": run.weights_sha256,
            "speedup_comm": _speedup(gloo, run),
        }
        for run in result.runs
    ]
    faulty = next((run for run in result.runs if run.spec.fault is not None), None)
    return {
        "switch": result.demo.switch,
        "workers": result.demo.workers,
        "topology": result.demo.topology,
        "link": result.demo.link_name,
        "elements": result.runs[0].elements,
        "runs": runs,
        "weights_identical_under_loss": _identical(lossless, lossy),
        **({} if faulty is None else {"weights_identical_after_fault": _identical(lossless, faulty)}),
    }


def _identical(one: TrainingResult | None, other: TrainingResult | None) -> bool | None:
    return None if one is None or other is None else one.weights_sha256 == other.weights_sha256
