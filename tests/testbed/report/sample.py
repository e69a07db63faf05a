# SPDX-License-Identifier: Apache-2.0
"""A page with every part, whose texts try to leave their places."""

import math

from inagg_testbed.network.fabric import Fabric
from inagg_testbed.network.traffic import LinkBytes
from inagg_testbed.report.parts import (
    Axis,
    Bars,
    BarSeries,
    Cell,
    Column,
    Definitions,
    FabricPicture,
    Mark,
    Page,
    Panel,
    Plot,
    Section,
    Series,
    Span,
    Table,
    Text,
    Timeline,
    TimelineRow,
    Verdict,
)

HOSTILE = '</script><script>window.escaped = 1</script><img src="x" onerror="window.escaped = 1">'
LOSSES = Plot(
    "Loss",
    Axis("step"),
    Axis("loss", log=True),
    [
        Series("gloo", list(range(1, 11)), [8.0, 4.0, 2.0, 1.0, math.nan, 0.5, 0.4, 0.3, 0.2, 0.1]),
        Series("inagg:32", list(range(1, 11)), [9.0, 5.0, 3.0, 2.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5]),
        Series(HOSTILE, [1, 10], [1.0, 2.0]),
    ],
    [Mark(5, "switch is killed")],
)
STEPS = Bars(
    "Step time",
    "ms",
    ["gloo", "inagg:32"],
    [
        BarSeries("computation", [20.0, 22.0]),
        BarSeries("communication", [80.0, 40.0], [90.0, 58.0], [120.0, 70.0]),
    ],
    stacked=True,
)
RATIOS = Bars(
    "Ratios",
    "times as fast",
    ["2 workers", "4 workers"],
    [BarSeries("inagg:16", [2.5, None]), BarSeries("inagg:8", [3.0, 4.0])],
    reference=Mark(1, "gloo"),
)
STEP = Timeline(
    "One step",
    [
        TimelineRow(
            "rank 0",
            [
                Span("forward", "computation", 0, 10),
                Span("backward", "computation", 10, 30),
                Span("bucket 0", "sum", 18, 26),
                Span("bucket 1", "sum", 24, 42),
                Span("for rank 1", "wait", 42, 50),
            ],
        ),
        TimelineRow("rank 1", [Span("forward", "computation", 0, 20), Span("bucket 0", "sum", 30, 50)]),
    ],
)
NUMBERS = Table(
    "Figures",
    [Column("backend", False), Column("time ms", best="min"), Column("weights", False)],
    [
        [Cell("gloo"), Cell("1,000", 1000), Cell("9abc")],
        [Cell("inagg:32"), Cell("9.5", 9.5), Cell("1def")],
        [Cell("none"), Cell("-"), Cell("2abc")],
        [Cell("inagg:16"), Cell("80", 80), Cell("0123")],
    ],
)
WIDE = Table(
    "Many figures",
    [Column(f"figure {number}", number > 0) for number in range(8)],
    [
        [
            Cell("of a backend with a long name"),
            *(Cell(f"{number:,}", number) for number in range(10**6, 10**6 + 7)),
        ]
    ],
)
LINKS = [
    LinkBytes("h1", "leaf1:1", 4_000_000, 1_000_000),
    LinkBytes("leaf1:101", "root:1", 8_000_000, 2_000_000),
]
FABRIC = FabricPicture("Links", Fabric.parse("tree:2x2"), [Panel("gloo", LINKS), Panel(HOSTILE, [])])
PAGE = Page(
    title=f"Sample {HOSTILE}",
    subtitle="for tests",
    summary=["A step takes 100 ms."],
    sections=[
        Section("Result", [Text(HOSTILE), NUMBERS, LOSSES, STEPS, RATIOS]),
        Section("Network", [FABRIC, STEP]),
        Section("Definitions", [WIDE, Definitions([("loss", "the loss")])]),
    ],
    verdicts=[Verdict(True, "weights are equal"), Verdict(False, "accuracy is lower")],
    notices=["quick run"],
    environment=[("CPU", "a" * 200)],
    commands=["inagg demo " + "--option value " * 30],
    data={"label": HOSTILE, "runs": [1, 2, 3]},
)
