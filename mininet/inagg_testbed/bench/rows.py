# SPDX-License-Identifier: Apache-2.0
"""Makes the rows of `inagg bench allreduce` from the events of its workers.

Definitions, for a tensor of S bytes, N workers and time t of an iteration on the slowest rank:
- times_ms: t of each iteration; time_ms: their median, 95th percentile and minimum.
- ratio_to_gloo: median of the per-round ratios of gloo's t to the row's t. None without gloo, and for rows with loss,
  because gloo runs without loss.
- ratio_to_lossless: median of the per-round ratios of the row's t to the same backend's t without loss: 1.25 is a
  quarter slower. None for a row without loss, or if only loss was measured.
- algbw = S / t, busbw = algbw x 2(N-1)/N, as in nccl-tests (doc/PERFORMANCE.md), in 10^6 bytes a second.
- line_rate_fraction: payload bits that the algorithm must send over its busiest link, divided by link rate x t
  (`theory`: elements x W in each direction for inagg with W-bit lanes, 2(N-1)/N x a type's bits x elements for gloo).
  Headers (4% for inagg, 4% for TCP) and guard bits are overhead, so 1.0 cannot be reached. None on unshaped links.
- link_bytes: median over the iterations of the bytes of frames on the busiest link of a host, servers' hosts included,
  in the busier direction, for each all-reduce. They are the kernel's counts at the switch's end (`network.traffic`),
  with Ethernet headers, retransmissions and the 2 kB or so of the barriers around an iteration. A frame with
  offloads counts its headers once.
- theory_bytes: the payload that the algorithm must send there (`theory`). Headers of packets of 1 KiB make
  link_bytes up to 1.06 times as much.
- theory: the same as a formula: S is the tensor in lanes, k the number of servers.
- steps: the number of messages between hosts that wait for one another (`theory`).
- in_switch: the share of the chunks that switches have summed wholly in the timed iterations, as the ranks' servers
  count them (docs/protocol.md, 5.7): 1 with leased slots, 0 with servers alone. None for gloo, and for inagg-shared-1,
  whose server reports once a second: too late for an iteration.
- cpu_s_per_GB: median CPU time, user and kernel, of all workers, the switch, servers of their own and the kernel's
  ksoftirqd threads between the barriers before and after an iteration (`cpu`), divided by S / 10^9.
- packets: packets sent by all ranks in all timed iterations, retransmissions included; TCP segments for gloo.
- retransmits: the retransmitted ones among packets.
- packets_per_message: packets over messages of all ranks' transports, of those sent and of those received. A message
  passes the kernel as one (UDP_SEGMENT, UDP_GRO): the fewer its packets, the more processor time they cost. None for
  gloo.
- max_abs_error: the greatest |result - exact sum| over all elements and iterations.
- bound: the greatest of the error bounds of the elements (docs/protocol.md 3.4 for inagg, and one rounding to the type;
  summation in the type in any order for gloo).
- transport: medians of the transport's figures after each iteration (window, RTTs, RTO); None for gloo.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inagg_baselines.theory import Theory
from inagg_testbed.bench.plan import INAGG, INAGG_SERVER, INAGG_SERVER_1, INAGG_SHARED, BackendSpec, Case
from inagg_testbed.bench.theory import theory, theory_bytes
from inagg_testbed.network.fabric import STAR, RankOrder
from inagg_testbed.network.workers import Event


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Settings that all rows of a testbed share.

    words: None without aggregation. racks: the ranks below each leaf.
    """

    link_name: str
    rate_bps: int | None
    mtu: int
    words: int | None
    topology: str = STAR
    uplink_name: str | None = None
    rank_order: RankOrder = "contiguous"
    racks: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Series:
    """The iterations of one backend at one loss in one case, on all ranks."""

    case: Case
    spec: BackendSpec
    loss: float
    events: list[Event]

    @property
    def key(self) -> tuple[int, str]:
        """Identifies the case and the backend: the same for all losses."""
        return id(self.case), str(self.spec)

    @property
    def times(self) -> list[float]:
        """Seconds of each iteration on its slowest rank."""
        return [max(event["seconds"] for event in events) for events in self.iterations.values()]

    @property
    def iterations(self) -> dict[int, list[Event]]:
        """The events of each iteration, in order."""
        found: dict[int, list[Event]] = {}
        for event in self.events:
            found.setdefault(event["index"], []).append(event)
        return dict(sorted(found.items()))

    @property
    def disagreements(self) -> list[int]:
        """Iterations whose results differ between ranks (docs/protocol.md, 3.4, forbids that)."""
        return [
            index
            for index, events in self.iterations.items()
            if len({event["digest"] for event in events}) > 1
        ]

    @property
    def wrong(self) -> list[Event]:
        """Results beyond their bound. Only rank 0 compares: the others have the same bits, or are in disagreements."""
        return [event for event in self.events if event.get("wrong_index") is not None]

    def ratio(self, reference: "Series | None") -> float | None:
        """Median of the per-round ratios of the reference's time to ours; None without a reference."""
        if reference is None:
            return None
        return statistics.median(
            theirs / ours for theirs, ours in zip(reference.times, self.times, strict=True)
        )


def group_events(cases: Sequence[Case], events: Iterable[Event]) -> list[Series]:
    """Events by case, backend and loss, in the order of the plan."""
    found: dict[tuple[int, str, float], list[Event]] = {}
    for event in events:
        found.setdefault((event["case"], event["backend"], event["loss"]), []).append(event)
    return [
        Series(case, BackendSpec.parse(backend), loss, found[number, backend, loss])
        for number, case in enumerate(cases)
        for backend, loss in case.contestants()
    ]


def make_rows(conditions: Conditions, cases: Sequence[Case], events: Iterable[Event]) -> list[dict[str, Any]]:
    """The rows of the JSON file; the module docstring defines their fields."""
    series = group_events(cases, events)
    lossless = {one.key: one for one in series if one.loss == 0}
    return [
        {
            **_settings(conditions, one),
            **_times(conditions, one, lossless),
            **_crossed(conditions, one),
            "cpu_s_per_GB": _cpu_seconds(one) / (_tensor_bytes(one.case) / 1e9),
            "packets": sum(event["packets"] for event in one.events),
            "retransmits": sum(event["retransmits"] for event in one.events),
            "packets_per_message": _per_message(one),
            "transport": None if one.spec.lane_bits is None else _transport(one.events),
            "max_abs_error": max((_error(event) for event in one.events if "bound" in event), default=0.0),
            "bound": max((event["bound"] for event in one.events if "bound" in event), default=0.0),
            "checked": not one.disagreements and not one.wrong,
        }
        for one in series
    ]


def _settings(conditions: Conditions, one: Series) -> dict[str, Any]:
    """The fields that say what was measured."""
    return {
        "experiment": one.case.experiment,
        "backend": one.spec.name,
        "lane_bits": one.spec.lane_bits,
        "workers": one.case.workers,
        "elements": one.case.elements,
        "dtype": one.case.dtype,
        "topology": conditions.topology,
        "rank_order": conditions.rank_order,
        "link": conditions.link_name,
        "uplink": conditions.uplink_name,
        "mtu": conditions.mtu,
        "words": None if one.spec.lane_bits is None else conditions.words,
        "loss": one.loss,
        "iterations": one.case.iterations,
        "warmup": one.case.warmup,
        "back_to_back": one.case.back_to_back,
    }


def _times(conditions: Conditions, one: Series, lossless: Mapping[tuple[int, str], Series]) -> dict[str, Any]:
    """The fields that depend on the iterations' times."""
    case, median = one.case, statistics.median(one.times)
    algbw = _tensor_bytes(case) / median / 1e6
    compared = one.loss and one.key in lossless
    return {
        "time_ms": {
            "p50": median * 1e3,
            "p95": float(np.percentile(one.times, 95)) * 1e3,
            "min": min(one.times) * 1e3,
        },
        "times_ms": [seconds * 1e3 for seconds in one.times],
        "ratio_to_gloo": None if one.loss else one.ratio(lossless.get((id(case), "gloo"))),
        "ratio_to_lossless": lossless[one.key].ratio(one) if compared else None,
        "algbw_MBps": algbw,
        "busbw_MBps": algbw * 2 * (case.workers - 1) / case.workers,
        "line_rate_fraction": line_rate_fraction(
            _theory_bytes(theory(one.spec, case.workers, conditions.racks), one),
            conditions.rate_bps,
            median,
        ),
    }


def _crossed(conditions: Conditions, one: Series) -> dict[str, Any]:
    """The fields about the busiest link of a host, and what spares it bytes."""
    measured = [event["link_bytes"] for event in one.events if "link_bytes" in event]
    known = theory(one.spec, one.case.workers, conditions.racks)
    return {
        "link_bytes": statistics.median(measured) if measured else None,
        "theory_bytes": _theory_bytes(known, one),
        "theory": known.formula,
        "steps": known.steps,
        "in_switch": _in_switch(one),
    }


def _in_switch(one: Series) -> float | None:
    if one.spec.name != INAGG_SHARED:
        known = {INAGG: 1.0, INAGG_SERVER: 0.0, INAGG_SERVER_1: 0.0}
        return known.get(one.spec.name)
    chunks: Counter[str] = Counter()
    for event in one.events:
        chunks.update(event["chunks"])
    return chunks["switches"] / chunks.total()


def _theory_bytes(known: Theory, one: Series) -> float:
    return theory_bytes(known, one.spec, one.case.elements, one.case.element_type.bits)


def _tensor_bytes(case: Case) -> float:
    return case.elements * case.element_type.bits / 8


def _cpu_seconds(one: Series) -> float:
    totals = [sum(event["cpu_seconds"] for event in events) for events in one.iterations.values()]
    return float(statistics.median(totals))


def _per_message(one: Series) -> dict[str, float] | None:
    if one.spec.lane_bits is None:
        return None
    carried: Counter[str] = Counter()
    for event in one.events:
        carried.update(event["carried"])
    ways = ("sent", "received")
    return {way: carried[f"packets_{way}"] / max(carried[f"messages_{way}"], 1) for way in ways}


def _transport(events: Sequence[Event]) -> dict[str, float]:
    return {
        name: statistics.median(event["transport"][name] for event in events)
        for name in events[0]["transport"]
    }


def _error(event: Event) -> float:
    value = event["max_abs_error"]
    return float("inf") if value is None else float(value)


def line_rate_fraction(link_bytes: float, rate_bps: int | None, seconds: float) -> float | None:
    """The line_rate_fraction of the module docstring. link_bytes: what the algorithm must send."""
    return None if rate_bps is None or seconds == 0 else 8 * link_bytes / (rate_bps * seconds)


def wrong_results(cases: Sequence[Case], events: Iterable[Event]) -> Iterable[str]:
    """A message for each result that is beyond its bound or differs between ranks."""
    for one in group_events(cases, events):
        lossy = f", {one.loss:.1%} loss" if one.loss else ""
        where = f"{one.spec}, {one.case.workers} workers, {one.case.elements} elements{lossy}, iteration"
        for event in one.wrong:
            yield (
                f"{where} {event['index']}, rank {event['rank']}: element {event['wrong_index']} is"
                f" {event['wrong_value']}, exactly {event['exact_value']}"
            )
        yield from (f"{where} {index}: the ranks have different results" for index in one.disagreements)


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of at most 90 columns; the JSON file has all fields."""
    varying = _varying(rows)
    header = [
        "backend",
        *varying,
        "p50 ms",
        "min ms",
        "vs gloo",
        "busbw MB/s",
        "line rate",
        "CPU s/GB",
        "resent",
        "error/ bound",
    ]
    body = []
    for row in rows:
        share = row["max_abs_error"] / row["bound"] if row["bound"] else 0.0
        body.append(
            [
                str(spec_of(row)),
                *_settings_of(row, varying),
                _rounded(row["time_ms"]["p50"], 4),
                _rounded(row["time_ms"]["min"], 4),
                _figure(row["ratio_to_gloo"], ".2f", "x"),
                _rounded(row["busbw_MBps"], 4),
                _figure(row["line_rate_fraction"], ".3f"),
                _rounded(row["cpu_s_per_GB"], 3),
                str(row["retransmits"]),
                f"{share:.2f}" if row["checked"] else "WRONG",
            ]
        )
    return header, body


LINKS_TITLE = (
    "on the busiest link of a host, for each all-reduce, in one direction:\n"
    "frames as the kernel counts them, beside the payload that the algorithm must\n"
    "send (S: the tensor in lanes, N: workers), in steps that wait for one another;\n"
    "the share of chunks that switches have summed; and how many packets pass the\n"
    "kernel in one message, of those that ranks send and receive"
)


def links_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of the bytes on the busiest link, beside theory, and of messages."""
    varying = _varying(rows)
    header = ["backend", *varying, "frames MB", "theory MB", "frames/ theory", "theory", "steps", "in switch"]
    header += ["sent/ msg", "recv/ msg"]
    body = []
    for row in rows:
        frames, payload = row["link_bytes"], row["theory_bytes"]
        messages = row["packets_per_message"] or {}
        body.append(
            [
                str(spec_of(row)),
                *_settings_of(row, varying),
                "" if frames is None else _rounded(frames / 1e6, 4),
                _rounded(payload / 1e6, 4),
                f"{frames / payload:.3f}" if frames and payload else "",
                row["theory"],
                str(row["steps"]),
                _figure(row["in_switch"], ".0%"),
                *(_figure(messages.get(way), ".0f") for way in ("sent", "received")),
            ]
        )
    return header, body


def spec_of(row: Mapping[str, Any]) -> BackendSpec:
    """The backend of a row."""
    return BackendSpec(name=row["backend"], lane_bits=row["lane_bits"])


def _varying(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [name for name in ("workers", "elements", "loss") if len({row[name] for row in rows}) > 1]


def _settings_of(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [f"{row[name]:.3g}" if name == "loss" else str(row[name]) for name in names]


def _rounded(value: float, digits: int) -> str:
    """The value with `digits` digits, or as an integer if it has more; without an exponent."""
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def _figure(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"
