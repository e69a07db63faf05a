# SPDX-License-Identifier: Apache-2.0
"""The figures of a comparison: of one run, and of all runs of an architecture. docs/compare.md explains them.

Times of a step are those of the slowest rank in the step, and their median over the steps. The parts of a step are of
one rank each, so they are means over ranks and steps.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from inagg_testbed.compare.groups import GroupFigures, group_figures, theory_of_calls
from inagg_testbed.compare.plan import Compare, Until
from inagg_testbed.compare.surroundings import NOTHING_SEEN, Surroundings
from inagg_testbed.compare.timeline import StepTimeline, read_steps, typical
from inagg_testbed.compare.ways import Way
from inagg_testbed.errors import WrongResultError
from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.queues import Queues
from inagg_testbed.network.traffic import LinkBytes
from inagg_testbed.network.training_run import values_by_step
from inagg_testbed.network.workers import Event

Events = Sequence[tuple[int, Event]]

_SMOOTH = 10  # steps over which a program's loss is averaged


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Parts(_Document):
    """What a step's time is made of, in ms; means over ranks and steps."""

    ran: float = Field(description="the program's thread was on a processor")
    queued: float = Field(description="it was ready to run, while others had the processors")
    waited: float = Field(description="it slept while collectives or exchanges of weights were under way")
    other: float = Field(description="it slept otherwise: data loaders, files")
    communication: float = Field(description="collectives or exchanges were under way")

    @property
    def computation(self) -> float:
        """Ran, or was ready to."""
        return self.ran + self.queued

    @property
    def overlapped(self) -> float:
        """Communication for which the program did not wait."""
        return max(0.0, self.communication - self.waited)


class Link(_Document):
    """Bytes on a link, from the start of the ranks to their end, Ethernet headers included."""

    lower: str = Field(description="a host, or a port of the lower switch")
    upper: str = Field(description="a port of a switch")
    up: int = Field(description="bytes towards upper")
    down: int = Field(description="bytes from it")
    rate_bps: int | None = Field(default=None, description="of its slower direction; null: not shaped")
    dropped: int = Field(default=0, description="packets for which these queues had no room")


LateCause = Literal["computation", "processors", "data loading", "network"]
# A rank that waits for a processor too runs longer by at least this share of half of its lateness, if it computes more.
_COMPUTES_MORE = 0.2


class Late(_Document):
    """A rank that others wait for."""

    rank: int
    late_ms: float = Field(description="in a sum, on average")
    cause: LateCause


class RunFigures(_Document):
    """One training under one architecture."""

    way: str = Field(description="as in --with")
    repeat: int = Field(description="from 0; repeats differ in their seed")
    seed: int
    steps: int = Field(description="that rank 0 has done")
    elements: int = Field(description="parameters that are trained")
    seconds: float = Field(
        description="from the end of rank 0's first step to that of its last, without evaluations"
    )
    step_ms: float = Field(
        description="median over the steps of the slowest rank's step; with local:H over means of H steps"
    )
    parts_ms: Parts
    loading_ms: float = Field(
        description="a step waited for data loaders; those without processes of their own compute"
    )
    cpu_ms: float = Field(description="processor time of a step, of all ranks together")
    busiest_link_bytes: float = Field(
        description="in a step, in the busier direction of the busiest link of a host"
    )
    theory_bytes: float = Field(description="what this should be, without headers")
    theory_steps: float = Field(description="messages that depend on each other, in a step on average")
    sums: float = Field(description="that ended in a step; 0 if ranks exchange weights")
    least_rtt_ms: float | None = Field(
        description="least round-trip time of a rank's TCP connections to other hosts but the controller's"
    )
    resent: float = Field(description="share of packets that were sent again")
    resent_packets: int = Field(default=0, description="packets that all ranks together have sent again")
    timeouts: float = Field(
        default=0.0, description="of TCP's retransmission timers in a step, at the host that had most"
    )
    late: list[Late] = Field(description="ranks that others wait for, the latest first")
    shares: dict[str, float] = Field(
        description="inagg's causes, as inagg.explain, with shares of the time: means over ranks; empty without a job"
    )
    switch_rtt_ms: float | None = Field(
        default=None, description="least time from a contribution to its result; null without a job"
    )
    serving_ran_ms: float = Field(
        default=0.0,
        description="a step's time on a processor of a rank's busiest other thread, such as gloo's: mean over ranks",
    )
    serving_queued_ms: float = Field(default=0.0, description="that this thread was ready to run")
    switch_ran_ms: float = Field(
        default=0.0, description="a step's time on a processor of the busiest thread of a switch"
    )
    switch_queued_ms: float = Field(default=0.0, description="that this thread was ready to run")
    idle: float = Field(default=1.0, description="share of the time of this machine's processors")
    peak_bytes: int = Field(description="largest memory of a rank's process")
    losses: list[float | None] = Field(
        description="by step, mean over ranks; null if the program calls no backward"
    )
    clock_s: list[float] = Field(description="rank 0's clock after each of these steps")
    judged: list[tuple[int, float, float | None]] = Field(
        description="steps, seconds, and the held-out accuracy or loss of rank 0's model; null: not a number"
    )
    quality: float | None = Field(description="of the model at the end; null for a program")
    reached_s: float | None = Field(
        description="seconds until the target of --until; null: not reached, or none"
    )
    weights: list[str] = Field(description="hashes of the weights in which ranks have ended")
    groups: list[GroupFigures] = Field(default=[], description="of a mesh; else empty")
    links: list[Link]
    timeline: StepTimeline | None = Field(
        default=None, description="one of the last steps; null: the ranks have none in common"
    )

    @property
    def last_loss(self) -> float | None:
        """The mean of the last steps' losses; None if they are not known."""
        last = [loss for loss in self.losses[-_SMOOTH:] if loss is not None]
        return statistics.fmean(last) if last else None


class Interval(_Document):
    """A mean over the repeats, and half the width of its 95% confidence interval; None with one repeat."""

    mean: float
    half_width: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Student's t interval."""
        if len(values) < 2:
            return cls(mean=values[0], half_width=None)
        from scipy import stats

        quantile = float(stats.t.ppf(0.975, len(values) - 1))
        return cls(
            mean=statistics.fmean(values),
            half_width=quantile * statistics.stdev(values) / math.sqrt(len(values)),
        )

    def __format__(self, spec: str) -> str:
        mean = format(self.mean, spec)
        return mean if self.half_width is None else f"{mean} ±{format(self.half_width, spec)}"


class ComparisonFigures(_Document):
    """The contents of compare.json."""

    schema_version: Literal[1] = 1
    settings: dict[str, Any] = Field(description="what was compared")
    machine: dict[str, str]
    command: list[str]
    runs: list[RunFigures]

    @property
    def ways(self) -> list[str]:
        """The architectures that have run; the others are compared with the first."""
        return list(dict.fromkeys(run.way for run in self.runs))

    @property
    def has_target(self) -> bool:
        """Whether what counts is the time to a target, rather than that of a step."""
        return self.settings["until"] is not None

    @property
    def rate_bps(self) -> int | None:
        """Of the hosts' links."""
        return LinkSpec.parse(self.settings["link"]).rate_bps

    @property
    def fabric(self) -> Fabric:
        """The hosts, switches and links."""
        chosen = self.settings
        return Fabric.parse(chosen["topology"], hosts=chosen["workers"], rank_order=chosen["rank_order"])

    def of(self, way: str) -> list[RunFigures]:
        """The runs of an architecture."""
        return [run for run in self.runs if run.way == way]

    def gain(self, way: str) -> float | None:
        """The median of `ratios`; None without any."""
        found = self.ratios(way)
        return statistics.median(found) if found else None

    def ratios(self, way: str) -> list[float]:
        """See `ratios`; over the first architecture."""
        return ratios(self.of(way), self.of(self.ways[0]), by_target=self.has_target)


def summarise(
    compare: Compare,
    way: Way,
    repeat: int,
    seed: int,
    events: Events,
    around: Surroundings = NOTHING_SEEN,
) -> RunFigures:
    """A run's figures, from its ranks' events. Raises WrongResultError."""
    ends = [event for _, event in events if event["event"] == "end"]
    begins = [event for _, event in events if event["event"] == "begin"]
    steps = [(rank, event) for rank, event in events if event["event"] == "step"]
    if len(ends) < len({rank for rank, _ in events}):
        raise WrongResultError(f"{way}: a rank ended in the middle, without an error: by os._exit?")
    if not steps:
        raise WrongResultError(
            f"{way}: the program did fewer than two steps: no optimizer of torch.optim has called step twice. Does it"
            " train? What it printed is in the folder logs of the results"
        )
    weights = sorted({digest for event in ends for digest in event["weights"]})
    parts = 1 if compare.mesh is None else compare.mesh.parts
    if compare.model is not None and len(weights) > parts and not way.exchanges_weights:
        raise WrongResultError(f"{way}: the ranks ended with {len(weights)} different sets of weights")
    clock, judged = 0.0, []
    seconds = [0.0]  # of rank 0's clock after each step
    for rank, event in events:
        if rank == 0 and event["event"] == "step":
            clock += event["seconds"]
            seconds.append(clock)
        if rank == 0 and event["event"] == "judged":
            judged.append((event["steps"], clock, event["value"]))
    losses = [_mean(found) for _, found in sorted(values_by_step(steps, "step", "loss").items())]
    groups = {rank: event for rank, event in events if event["event"] == "group"}
    calls = [event["groups"] for _, event in events if event["event"] == "groups"]
    rtts = [event["least_rtt_s"] for event in groups.values() if event["least_rtt_s"] is not None]
    steps = _whole_periods(steps, way.period)
    slowest = [max(each) for _, each in sorted(values_by_step(steps, "step", "seconds").items())]
    switch_rtts = [rtt for event in groups.values() if (rtt := event.get("switch_rtt_s"))]
    sums = max((event["sums"] for event in groups.values()), default=0) / len(seconds[1:])
    elements = max((event["elements"] for event in begins), default=0)
    if compare.mesh is None and elements:
        theory, element_bytes = way.theory(compare.fabric.size, compare.racks)
        theory_bytes, theory_steps = theory.share * element_bytes * elements, theory.steps
    else:
        theory_bytes, theory_steps = theory_of_calls(calls, way, len(seconds[1:]))
    by_rank = {rank: [event for other, event in steps if other == rank] for rank, _ in steps}
    return RunFigures(
        way=way.text,
        repeat=repeat,
        seed=seed,
        steps=len(seconds),
        elements=elements,
        seconds=clock,
        step_ms=1e3
        * statistics.median(
            statistics.fmean(slowest[start : start + way.period])
            for start in range(0, len(slowest), way.period)
        ),
        parts_ms=_parts([event for _, event in steps]),
        loading_ms=1e3 * statistics.fmean(event["loaded"] for _, event in steps),
        cpu_ms=1e3 * sum(statistics.fmean(event["cpu"] for event in own) for own in by_rank.values()),
        busiest_link_bytes=max(
            statistics.fmean(event[way_] for event in own)
            for own in by_rank.values()
            for way_ in ("sent", "received")
        ),
        theory_bytes=theory_bytes,
        theory_steps=theory_steps,
        sums=sums,
        least_rtt_ms=1e3 * min(rtts) if rtts else None,
        resent=statistics.fmean(event["resent"] for event in groups.values()) if groups else 0.0,
        resent_packets=sum(event.get("resent_packets", 0) for event in groups.values()),
        timeouts=max((event.get("timeouts", 0) for event in groups.values()), default=0) / len(seconds[1:]),
        late=[
            _late(one, by_rank, sums)
            for one in (groups[0]["late"] if 0 in groups and compare.mesh is None else ())
        ],
        shares=_mean_shares([event["shares"] for event in groups.values() if event["shares"]]),
        switch_rtt_ms=min((1e3 * rtt for rtt in switch_rtts), default=None),
        serving_ran_ms=_mean_ms(groups.values(), "ran_s", len(seconds[1:])),
        serving_queued_ms=_mean_ms(groups.values(), "queued_s", len(seconds[1:])),
        switch_ran_ms=1e3 * around.switch.ran_s / len(seconds[1:]),
        switch_queued_ms=1e3 * around.switch.queued_s / len(seconds[1:]),
        idle=around.idle,
        peak_bytes=max(event["peak_bytes"] for event in ends),
        losses=losses,
        clock_s=seconds[1:],
        judged=judged,
        quality=next(
            (event["value"] for rank, event in events if rank == 0 and event["event"] == "quality"), None
        ),
        reached_s=None
        if compare.until is None
        else _reached(compare.until, compare.model, judged, losses, seconds),
        weights=weights,
        groups=[] if compare.mesh is None else group_figures(calls, len(seconds[1:])),
        links=[_link(each, around.queues.get((each.lower, each.upper))) for each in around.links],
        timeline=typical(
            {rank: read_steps(event["steps"]) for rank, event in events if event["event"] == "spans"}
        ),
    )


def _whole_periods(steps: Sequence[tuple[int, Event]], period: int) -> list[tuple[int, Event]]:
    """The last steps of ranks, a multiple of the period; all, if they are fewer than a period."""
    last = max(event["step"] for _, event in steps) + 1
    count = last // period * period or last
    return [(rank, event) for rank, event in steps if event["step"] >= last - count]


def _link(counted: LinkBytes, queues: Queues | None) -> Link:
    shared: dict[str, Any] = {} if queues is None else asdict(queues)
    return Link(lower=counted.lower, upper=counted.upper, up=counted.up, down=counted.down, **shared)


def _late(late: Mapping[str, Any], by_rank: Mapping[int, Sequence[Event]], sums: float) -> Late:
    """A rank that is late, with the cause that its steps show: what takes it so much longer than half of the others
    that this is at least half of its lateness. A rank that is only queued longer, and runs no longer, is late for want
    of a processor."""
    rank, late_s = late["rank"], late["late_s"]
    loaded, ran, queued = (_excess_s(by_rank, rank, name) for name in ("loaded", "ran", "queued"))
    enough_s = late_s * max(sums, 1) / 2
    cause: LateCause = "network"
    if loaded >= enough_s:
        cause = "data loading"
    elif ran + queued >= enough_s:
        cause = "computation" if ran > _COMPUTES_MORE * enough_s else "processors"
    return Late(rank=rank, late_ms=1e3 * late_s, cause=cause)


def _excess_s(by_rank: Mapping[int, Sequence[Event]], rank: int, name: str) -> float:
    """How much longer a part of a rank's steps is than the median of the other ranks'."""
    means = {each: statistics.fmean(step[name] for step in steps) for each, steps in by_rank.items()}
    others = [mean for each, mean in means.items() if each != rank]
    return means[rank] - statistics.median_low(others) if others and rank in means else 0.0


def _mean_ms(groups: Iterable[Event], name: str, steps: int) -> float:
    """Of the ranks' busiest other threads, in a step."""
    found = [event["serving"][name] for event in groups if "serving" in event]
    return 1e3 * statistics.fmean(found) / steps if found else 0.0


def _parts(steps: Sequence[Event]) -> Parts:
    """Means over the steps. What a step slept is at most what it lasted without what it ran and was queued."""
    rows = []
    for step in steps:
        slept = max(0.0, step["seconds"] - step["ran"] - step["queued"])
        # Groups may sum at the same time.
        communication = min(step["collecting"] + step["exchanging"], step["seconds"])
        waited = min(slept, communication)
        rows.append((step["ran"], step["queued"], waited, slept - waited, communication))
    ran, queued, waited, other, communication = (
        1e3 * statistics.fmean(each) for each in zip(*rows, strict=True)
    )
    return Parts(ran=ran, queued=queued, waited=waited, other=other, communication=communication)


def _mean_shares(of_ranks: Sequence[dict[str, float]]) -> dict[str, float]:
    causes = {cause for shares in of_ranks for cause in shares}
    return {cause: statistics.fmean(shares[cause] for shares in of_ranks) for cause in sorted(causes)}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _reached(
    until: Until,
    model: str | None,
    judged: Sequence[tuple[int, float, float]],
    losses: Sequence[float | None],
    seconds: Sequence[float],
) -> float | None:
    """When the target was reached. A program's loss counts as the mean of the last steps."""
    if model is not None:
        return next((time for _, time, value in judged if until.quality.reached(value, until.value)), None)
    for end in range(_SMOOTH, len(losses) + 1):
        recent = [loss for loss in losses[end - _SMOOTH : end] if loss is not None]
        if len(recent) == _SMOOTH and until.quality.reached(statistics.fmean(recent), until.value):
            return seconds[min(end, len(seconds) - 1)]
    return None


def group_table(comparison: ComparisonFigures) -> list[tuple[str, ...]]:
    """What the groups of a mesh do, of each architecture's first training, with the columns of `groups.HEADER`."""
    return [(way, *group.row) for way in comparison.ways for group in comparison.of(way)[0].groups]


HEADER = (
    "with",
    "step ms",
    "compute ms",
    "wait ms",
    "comm. ms",
    "overlap ms",
    "CPU ms",
    "MB/step",
    "bytes/theory",
    "peak MB",
    "end",
    "time s",
    "gain",
)


def table(comparison: ComparisonFigures) -> list[tuple[str, ...]]:
    """A row for each architecture. Gains are those of time to the target, else of a step, over the first row: medians
    of the ratios of runs with the same seed."""
    return [_row(comparison, comparison.of(way)) for way in comparison.ways]


def _row(comparison: ComparisonFigures, own: Sequence[RunFigures]) -> tuple[str, ...]:
    def interval(figure: Callable[[RunFigures], float], spec: str = ".0f") -> str:
        return format(Interval.of([figure(run) for run in own]), spec)

    times = [run.reached_s for run in own]
    qualities = [run.quality for run in own if run.quality is not None]
    theory = own[0].theory_bytes
    share = statistics.fmean(run.busiest_link_bytes for run in own) / theory if theory else None
    ends = qualities or [loss for run in own if (loss := run.last_loss) is not None]
    return (
        own[0].way,
        interval(lambda run: run.step_ms),
        interval(lambda run: run.parts_ms.computation),
        interval(lambda run: run.parts_ms.waited),
        interval(lambda run: run.parts_ms.communication),
        interval(lambda run: run.parts_ms.overlapped),
        interval(lambda run: run.cpu_ms),
        interval(lambda run: run.busiest_link_bytes / 1e6, ".2f"),
        "-" if share is None else f"{share:.2f}x",
        interval(lambda run: run.peak_bytes / 1e6),
        f"{statistics.fmean(ends):.4g}" if ends else "-",
        _times(times) if comparison.has_target else "-",
        _gain(comparison.ratios(own[0].way)),
    )


def _gain(found: Sequence[float]) -> str:
    """The median, and with repeats the least and the greatest."""
    if not found:
        return "-"
    spread = f" ({min(found):.2f} to {max(found):.2f})" if len(found) > 1 else ""
    return f"{statistics.median(found):.2f}x{spread}"


def _times(times: Sequence[float | None]) -> str:
    reached = [time for time in times if time is not None]
    if len(reached) < len(times):
        return f"{len(reached)} of {len(times)}" if reached else "never"
    return format(Interval.of(reached), ".1f")


def ratios(own: Sequence[RunFigures], first: Sequence[RunFigures], *, by_target: bool) -> list[float]:
    """The ratios of `first` to `own`, of the time to the target or of a step's, in runs of one repeat. Empty if a run
    has not reached the target."""

    def seconds(run: RunFigures) -> float | None:
        return run.reached_s if by_target else run.step_ms

    theirs = {run.repeat: seconds(run) for run in first}
    pairs = [(theirs.get(run.repeat), seconds(run)) for run in own]
    found = [before / now for before, now in pairs if before and now]
    return found if len(found) == len(pairs) else []
