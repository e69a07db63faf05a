# SPDX-License-Identifier: Apache-2.0
"""Tables and pictures of the rows that the all-reduce benchmark measures (`bench.rows`)."""

from collections.abc import Sequence
from typing import Any

from inagg_testbed.bench import rows as bench_rows
from inagg_testbed.bench.rows import spec_of
from inagg_testbed.report.parts import (
    SPREAD,
    Axis,
    Bars,
    BarSeries,
    Best,
    Definitions,
    Part,
    Plot,
    Series,
    Table,
    spread,
)

Row = dict[str, Any]
_VARYING = ("workers", "elements", "loss")
_BEST: dict[str, Best] = {"p50 ms": "min", "min ms": "min", "busbw MB/s": "max"}


def row_parts(rows: Sequence[Row]) -> list[Part]:
    """Tables and pictures of rows. A row's "run" is its run's name, if there are several."""
    best = None if _varying(rows) else _BEST
    return [
        _table("Each backend", rows, bench_rows.table(rows), best=best),
        *_times(rows),
        _table("Bytes on the busiest link of a host", rows, bench_rows.links_table(rows)),
        *_link_bytes(rows),
    ]


def _table(
    caption: str,
    rows: Sequence[Row],
    table: tuple[list[str], list[list[str]]],
    *,
    best: dict[str, Best] | None = None,
) -> Table:
    header, body = table
    if any(row.get("run") for row in rows):
        header = ["run", *header]
        body = [[row["run"], *cells] for row, cells in zip(rows, body, strict=True)]
    return Table.of_texts(caption, header, body, texts=["backend", "theory"], best=best)


def named_value(name: str, value: Any) -> str:
    """A value of what varies, with its name."""
    return f"{value:.3g} loss" if name == "loss" else f"{value:,} {name}"


def _varying(rows: Sequence[Row]) -> list[str]:
    return [name for name in _VARYING if len({row[name] for row in rows}) > 1]


def _label(row: Row, names: Sequence[str]) -> str:
    text = ", ".join([str(spec_of(row)), *(named_value(name, row[name]) for name in names)])
    return f"{row['run']}: {text}" if row.get("run") else text


def _times(rows: Sequence[Row]) -> list[Part]:
    """Time against what varies most, as lines; one case as bars."""
    varying = _varying(rows)
    if not varying:
        ends = [spread(row["times_ms"]) for row in rows]
        return [
            Bars(
                "Time of an all-reduce",
                "time (ms)",
                [_label(row, ()) for row in rows],
                [
                    BarSeries(
                        "median",
                        [row["time_ms"]["p50"] for row in rows],
                        [low for low, _ in ends],
                        [high for _, high in ends],
                    )
                ],
                about=f"Bars are medians of iterations, error bars go {SPREAD}.",
            )
        ]
    axis = max(varying, key=lambda name: len({row[name] for row in rows}))
    wide = axis == "elements" and max(row[axis] for row in rows) >= 10 * min(row[axis] for row in rows)
    lines = _lines_by(rows, axis)
    return [
        Plot(
            "Time of an all-reduce",
            Axis(axis, log=wide, zero=not wide),
            Axis("median time (ms)", log=wide, zero=not wide),
            [
                Series(label, [row[axis] for row in line], [row["time_ms"]["p50"] for row in line])
                for label, line in lines.items()
            ],
        ),
        Plot(
            "Bus bandwidth",
            Axis(axis, log=wide, zero=not wide),
            Axis("busbw (MB/s)", zero=True),
            [
                Series(label, [row[axis] for row in line], [row["busbw_MBps"] for row in line])
                for label, line in lines.items()
            ],
        ),
    ]


def _lines_by(rows: Sequence[Row], axis: str) -> dict[str, list[Row]]:
    """The rows of each line of a plot against `axis`, in its order."""
    others = [name for name in _varying(rows) if name != axis]
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda each: float(each[axis])):
        found.setdefault(_label(row, others), []).append(row)
    return found


def _link_bytes(rows: Sequence[Row]) -> list[Part]:
    counted = [row for row in rows if row["link_bytes"] is not None]
    if not counted:
        return []
    return [
        Bars(
            "Bytes on the busiest link of a host",
            "MB for each all-reduce, in one direction",
            [_label(row, _varying(rows)) for row in counted],
            [
                BarSeries("frames, counted", [row["link_bytes"] / 1e6 for row in counted]),
                BarSeries("payload, theory", [row["theory_bytes"] / 1e6 for row in counted]),
            ],
        )
    ]


def by_iteration(rows: Sequence[Row]) -> Plot:
    """The time of each iteration of each row."""
    return Plot(
        "Each iteration",
        Axis("iteration"),
        Axis("time on the slowest rank (ms)", zero=True),
        [
            Series(_label(row, _varying(rows)), list(range(1, len(row["times_ms"]) + 1)), row["times_ms"])
            for row in rows
        ],
        about="A drift of the machine shows in all backends alike, because each round measures every backend once.",
    )


DEFINITIONS = Definitions(
    (
        ("p50 ms, min ms", "Median and least time of an iteration, each on its slowest rank."),
        ("vs gloo", "Median over the rounds of gloo's time divided by the backend's in the same round."),
        (
            "busbw MB/s",
            "Bytes of the tensor over the median time, times 2(N-1)/N for N workers, as in nccl-tests, in 10^6 bytes a"
            " second.",
        ),
        (
            "line rate",
            "Payload bits that the algorithm must send over its busiest link, divided by link rate times time. Headers"
            " and guard bits are overhead, so 1.0 cannot be reached.",
        ),
        (
            "CPU s/GB",
            "CPU time of workers, switches, servers and the kernel's ksoftirqd threads for each 10^9 bytes of tensor.",
        ),
        ("resent", "Packets that were sent again in all timed iterations; TCP segments for gloo."),
        (
            "error/ bound",
            "Greatest error of a sum, divided by its bound; WRONG if a sum is beyond it or ranks differ.",
        ),
        (
            "frames MB, theory MB",
            "Bytes of one all-reduce on the busiest link of a host in its busier direction: frames as the kernel counts"
            " them, and the payload that the algorithm must send. S is the tensor in lanes, N the number of workers.",
        ),
        ("steps", "Messages between hosts, each of which must arrive before the next is sent."),
        ("in switch", "Share of the chunks that switches have summed wholly."),
        ("sent/ msg, recv/ msg", "Packets that pass the kernel in one message."),
    )
)
