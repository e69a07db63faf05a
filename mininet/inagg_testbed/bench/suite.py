# SPDX-License-Identifier: Apache-2.0
"""`inagg bench suite`: runs every experiment on three testbeds and writes all figures into one folder.

Each kind of link has one testbed, and the workers are launched once on it, because starting a worker takes seconds of
CPU time. Files of the folder:
- allreduce.json, latency.json, loss.json, scaling.json: settings and rows (`rows`);
- straggler.json (`straggler`);
- numerics.json, switch.json: written earlier by tests/bench/numerics.py and `inagg-switch bench`;
- targets.json, report.md, report.html, report.json and PNGs (`targets`, `report`).
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from inagg_testbed.bench.allreduce import AllReduceBench, measure
from inagg_testbed.bench.plan import Case
from inagg_testbed.bench.straggler import StragglerBench, run_straggler
from inagg_testbed.bench.targets import GOALS, LATENCY_ELEMENTS, LATENCY_WORKERS, LOSSES
from inagg_testbed.files import write_text
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import open_testbed

MEASURED = ("allreduce", "latency", "loss", "scaling", "straggler")  # also the names of their files
BACKENDS = ("gloo", "inagg:32", "inagg:16", "inagg:8")
SCALING_LINK = "1gbit"
SCALING_WORKERS = (2, 4, 8, 12, 16)
_SCALING_ELEMENTS = 1_000_000
# elements: (timed iterations, warm-up iterations, all-reduces in an iteration)
_SWEEP = {
    100: (20, 2, 10),
    1_000: (20, 2, 10),
    10_000: (20, 2, 1),
    100_000: (20, 2, 1),
    1_000_000: (10, 2, 1),
    10_000_000: (5, 1, 1),
    100_000_000: (2, 0, 1),
}
# The worker's tensor, its share of the library's and gloo's buffers, and the comparison's temporaries.
_COPIES = 3
_QUICK_DIVISOR, _QUICK_WORKERS = 1000, 2


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What to run. quick: run everything once, at small sizes: shows that it works, not how well."""

    backends: tuple[str, ...] = BACKENDS
    quick: bool = False
    program: Path | None = None

    def cases(self, link: str) -> tuple[Case, ...]:
        """The cases on a kind of link."""
        found = [*self._table(link)]
        if link == "unshaped":
            found.append(self._latency())
        if link == SCALING_LINK:
            found += self._scaling()
        if link == "100mbit":
            found.append(self._loss())
        cases = dict.fromkeys(shrunk(case) if self.quick else case for case in found)
        # Consecutive cases with the same number of workers share their groups.
        return tuple(
            sorted((case for case in cases if case.backends and fits(case)), key=lambda case: case.workers)
        )

    @property
    def straggler(self) -> StragglerBench:
        """The straggler experiment."""
        return StragglerBench(workers=2, sleep_s=1.0) if self.quick else StragglerBench(workers=4)

    def bench(self, link: str) -> AllReduceBench:
        """The all-reduce benchmark on a kind of link."""
        return AllReduceBench(
            link_name=link,
            link=LinkSpec.parse(link),
            cases=self.cases(link),
            program=self.program,
        )

    def _table(self, link: str) -> Iterable[Case]:
        for goal in GOALS:
            if goal.link == link:
                yield Case(workers=goal.workers, elements=goal.elements, backends=self.backends)

    def _latency(self) -> Case:
        return Case(
            experiment="latency",
            workers=LATENCY_WORKERS,
            elements=LATENCY_ELEMENTS,
            backends=self._only("gloo", "inagg:32"),
            iterations=50,
            back_to_back=20,
        )

    def _scaling(self) -> Iterable[Case]:
        for workers in SCALING_WORKERS:
            yield Case(
                experiment="scaling, workers",
                workers=workers,
                elements=_SCALING_ELEMENTS,
                backends=self.backends,
            )
        for elements, (iterations, warmup, back_to_back) in _SWEEP.items():
            yield Case(
                experiment="scaling, elements",
                workers=2,
                elements=elements,
                backends=self.backends,
                iterations=iterations,
                warmup=warmup,
                back_to_back=back_to_back,
            )

    def _loss(self) -> Case:
        return Case(
            experiment="loss",
            workers=4,
            elements=1_000_000,
            backends=self._only("inagg:32"),
            losses=(0.0, *LOSSES),
        )

    def _only(self, *backends: str) -> tuple[str, ...]:
        return tuple(backend for backend in self.backends if backend in backends)


def shrunk(case: Case) -> Case:
    """A case at a small size: shows that it works, not how well."""
    elements = max(1, case.elements // _QUICK_DIVISOR)
    return replace(
        case,
        workers=min(case.workers, _QUICK_WORKERS),
        elements=elements,
        iterations=2,
        warmup=0,
        back_to_back=1,
    )


def fits(case: Case, available: int | None = None) -> bool:
    """Whether a case fits in `available` bytes of memory, by default MemAvailable of proc(5)."""
    if available is None:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return 4 * case.elements * case.back_to_back * case.workers * _COPIES <= available


def run_suite(
    suite: Suite,
    folder: Path,
    results_root: Path,
    *,
    on_stage: Callable[[str], Any],
    on_progress: Callable[[str, int, int], Any],
) -> list[str]:
    """Run all experiments; return a message for each wrong result.

    `on_progress` gets the link's name, iterations done and all iterations. Files of an earlier run are removed from the
    folder. Raises LauncherError.
    """
    for name in MEASURED:
        (folder / f"{name}.json").unlink(missing_ok=True)
    rows: dict[str, list[dict[str, Any]]] = {}
    settings: dict[str, Any] = {}
    wrong: list[str] = []
    for link in dict.fromkeys(goal.link for goal in GOALS):
        bench = suite.bench(link)
        on_stage(f"{link} links")
        with open_testbed(
            fabric=bench.fabric,
            link=bench.link,
            results_root=results_root,
            program=bench.program,
            gloo_over=bench.gloo_path,
            on_stage=on_stage,
        ) as testbed:
            outcome = measure(bench, testbed, on_progress=partial(on_progress, link))
            if link == "100mbit":
                on_stage("straggler")
                write(folder, "straggler", run_straggler(suite.straggler, testbed))
        settings[link] = outcome.settings
        wrong += outcome.wrong
        for row in outcome.rows:
            rows.setdefault(row["experiment"].partition(",")[0], []).append(row)
    for name, found in rows.items():
        found.sort(key=lambda row: str(row["experiment"]))
        links = dict.fromkeys(row["link"] for row in found)
        write(folder, name, {"settings": {link: settings[link] for link in links}, "rows": found})
    return wrong


def write(folder: Path, name: str, figures: Any) -> None:
    """Write one JSON file of the folder."""
    write_text(folder / f"{name}.json", json.dumps(figures, indent=2) + "\n")
