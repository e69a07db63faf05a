# SPDX-License-Identifier: Apache-2.0
"""`inagg bench suite --matrix`: each way of summing on each fabric, at each rate, with two types and two sizes.

Each fabric and rate has a testbed with the switch model for leased and shared slots, and one with bridges for the
ranks' servers, where gloo has the same links. Half floats have lanes of their default, 16 bits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from inagg_testbed.bench.allreduce import AllReduceBench, run_bench
from inagg_testbed.bench.element_types import ELEMENT_TYPES, ElementName
from inagg_testbed.bench.plan import INAGG, INAGG_SERVER, INAGG_SHARED, Case
from inagg_testbed.bench.report import markdown_table
from inagg_testbed.bench.suite import shrunk, write
from inagg_testbed.errors import LauncherError
from inagg_testbed.files import write_text
from inagg_testbed.network.fabric import STAR
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.requirements import SwitchKind

STAR_WORKERS = 4
FABRICS = {STAR: STAR_WORKERS, "tree:2x4": 8, "leaf-spine:2x4x2": 8}
LINKS = ("100mbit", "1gbit", "unshaped")
ELEMENTS = (200_000, 2_000_000)
TYPES: tuple[ElementName, ...] = ("float32", "bfloat16")
# What sums, and on which kind of switch.
WAYS: Mapping[SwitchKind, tuple[str, ...]] = {"model": (INAGG, INAGG_SHARED), "bridge": (INAGG_SERVER,)}
_TITLES = {INAGG: "leased", INAGG_SHARED: "shared", INAGG_SERVER: "servers"}
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """What to run. quick: a part of it at small sizes: shows that it works, not how well."""

    quick: bool = False
    program: Path | None = None

    def benches(self) -> Iterator[AllReduceBench]:
        """A benchmark for each testbed."""
        for topology, workers in FABRICS.items():
            for link in LINKS:
                if self.quick and (topology != STAR or link != LINKS[-1]):
                    continue
                for switch, ways in WAYS.items():
                    yield AllReduceBench(
                        link_name=link,
                        link=LinkSpec.parse(link),
                        cases=tuple(self._cases(workers, ways)),
                        topology=topology,
                        switch=switch,
                        program=self.program,
                    )

    def _cases(self, workers: int, ways: Sequence[str]) -> Iterator[Case]:
        for dtype in TYPES:
            for elements in ELEMENTS:
                case = Case(
                    experiment="matrix",
                    workers=workers,
                    elements=elements,
                    backends=("gloo", *(f"{way}:{ELEMENT_TYPES[dtype].lane_bits}" for way in ways)),
                    iterations=8,
                    dtype=dtype,
                )
                yield shrunk(case) if self.quick else case


def run_matrix(
    matrix: Matrix,
    folder: Path,
    results_root: Path,
    *,
    on_stage: Callable[[str], Any],
    on_progress: Callable[[str, int, int], Any],
) -> list[str]:
    """Measure; return a message for each wrong result.

    Writes matrix.json and matrix.md after each testbed. Goes on after a testbed that fails; at the end raises the
    LauncherError of the first one.
    """
    figures: dict[str, Any] = {"settings": [], "rows": []}
    wrong: list[str] = []
    failed: LauncherError | None = None
    for bench in matrix.benches():
        name = f"{bench.topology}, {bench.link_name}, {'bridges' if bench.switch == 'bridge' else 'switches'}"
        on_stage(name)
        try:
            outcome = run_bench(
                bench,
                results_root,
                on_stage=on_stage,
                on_progress=partial(on_progress, name),
            )
        except LauncherError as error:
            on_stage(f"{name}: {error}")
            failed = failed or error
            continue
        wrong += outcome.wrong
        figures["settings"].append(outcome.settings)
        figures["rows"] += [{**row, "switch": bench.switch} for row in outcome.rows]
        write(folder, "matrix", figures)
        write_text(folder / "matrix.md", "\n".join(markdown_table(*table(figures["rows"]))) + "\n")
    if failed is not None:
        raise failed
    return wrong


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table: for gloo time and processor seconds a GB; for each way the ratio to gloo, packets
    a message (sent, received) and processor seconds a GB. Without a row (a testbed that failed) a cell is empty.
    """
    found = {(*_place(row), row["switch"], row["backend"]): row for row in rows}
    ways = [(switch, way) for switch, names in WAYS.items() for way in names]
    header = ["fabric, workers", "links", "tensor", "gloo", *(_TITLES[way] for _, way in ways)]
    body = []
    for topology, workers, link, dtype, elements in dict.fromkeys(map(_place, rows)):
        place = (topology, workers, link, dtype, elements)
        gloo = found.get((*place, "model", "gloo")) or found.get((*place, "bridge", "gloo"))
        cells = [_of_way(found.get((*place, switch, way))) for switch, way in ways]
        body.append([f"{topology}, {workers}", link, f"{elements:,} {dtype}", _of_gloo(gloo), *cells])
    return header, body


def _place(row: Row) -> tuple[str, int, str, str, int]:
    return row["topology"], row["workers"], row["link"], row["dtype"], row["elements"]


def _of_gloo(row: Row | None) -> str:
    return "" if row is None else f"{row['time_ms']['p50']:.3g} ms; {row['cpu_s_per_GB']:.0f} s"


def _of_way(row: Row | None) -> str:
    if row is None:
        return ""
    messages = row["packets_per_message"]
    packets = f"{messages['sent']:.0f}, {messages['received']:.0f}"
    return f"{row['ratio_to_gloo']:.2f}x; {packets}; {row['cpu_s_per_GB']:.0f} s"
