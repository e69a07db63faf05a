# SPDX-License-Identifier: Apache-2.0
"""`inagg bench suite --contention`: jobs that lease slots against jobs that share them, while slots become scarce.

Two jobs find slots to lease; each further job sums with gloo, over links of its own. The same jobs on shared slots
compete for as many; those of two workers need none (docs/protocol.md, 5.7), and gloo moves as few bytes for them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from inagg_contract.aggregation import LEASED, SHARED
from inagg_testbed.bench.jobs.plan import JobsBench
from inagg_testbed.bench.jobs.run import run_jobs
from inagg_testbed.bench.report import markdown_table
from inagg_testbed.bench.suite import write
from inagg_testbed.errors import LauncherError, WrongResultError
from inagg_testbed.files import write_text
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import open_testbed
from inagg_testbed.report.pictures import COLOURS, finish

LINKS = ("100mbit", "300mbit", "1gbit")
JOBS = (2, 3, 4)
WORKERS = (2, 4)  # of a job; gloo moves as many bytes as slots for 2, and 1.5 times as many for 4
POOL, SLOTS = 512, 256  # slots to lease, and those that a job asks for
NAME = "contention"
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Contention:
    """What to run. quick: one testbed, for a moment: shows that it works, not how well."""

    quick: bool = False
    program: Path | None = None

    def benches(self) -> Iterator[tuple[str, JobsBench]]:
        """The rate of the links, and what runs on them."""
        for link in LINKS[:1] if self.quick else LINKS:
            for workers in WORKERS[1:] if self.quick else WORKERS:
                for jobs in JOBS[1:2] if self.quick else JOBS:
                    yield (
                        link,
                        JobsBench(
                            jobs=jobs,
                            workers=workers,
                            elements=10_000 if self.quick else 1_000_000,
                            policies=(LEASED, SHARED),
                            seconds=1.0 if self.quick else 10.0,
                            pool=POOL,
                            slots=SLOTS,
                        ),
                    )


def run_contention(
    contention: Contention,
    folder: Path,
    results_root: Path,
    *,
    on_stage: Callable[[str], Any],
    on_progress: Callable[[str, int, int], Any],
) -> None:
    """Measure. Raises WrongResultError for a wrong sum.

    Writes contention.json, contention.md and contention.png after each testbed. Goes on after a testbed that fails; at
    the end raises the LauncherError of the first one.
    """
    rows: list[Row] = []
    failed: LauncherError | None = None
    for link, bench in contention.benches():
        name = f"{link}, {bench.jobs} jobs of {bench.workers} workers"
        on_stage(name)
        try:
            with open_testbed(
                hosts=bench.hosts,
                link=LinkSpec.parse(link),
                results_root=results_root,
                program=contention.program,
                pool=bench.pool,
                on_stage=on_stage,
            ) as testbed:
                figures = run_jobs(bench, testbed, on_progress=partial(_on_run, on_progress, name))
        except WrongResultError:
            raise
        except LauncherError as error:
            on_stage(f"{name}: {error}")
            failed = failed or error
            continue
        rows.append({**asdict(bench), "link": link, "policies": figures["rows"]})
        write(folder, NAME, {"rows": rows})
        write_text(folder / f"{NAME}.md", "\n".join(markdown_table(*table(rows))) + "\n")
        plot(rows, folder / f"{NAME}.png")
    if failed is not None:
        raise failed


def _on_run(on_progress: Callable[[str, int, int], Any], name: str, run: str, done: int, total: int) -> None:
    on_progress(f"{name}, {run}", done, total)


def table(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: by links and jobs the goodput of all jobs on leased slots, with gloo for those that find none,
    on shared slots, and the ratio."""
    header = ["links", "jobs", "of workers", "leased slots or gloo", "in the switch", "shared slots"]
    header += ["in the switch", "ratio"]
    body = []
    for row in rows:
        leased, shared = row["policies"]
        body.append(
            [
                row["link"],
                str(row["jobs"]),
                str(row["workers"]),
                f"{leased['goodput_MBps']:.1f} MB/s",
                f"{leased['in_switch']:.0%}",
                f"{shared['goodput_MBps']:.1f} MB/s",
                f"{shared['in_switch']:.0%}",
                f"{shared['ratios'][LEASED]:.2f}x",
            ]
        )
    return header, body


def plot(rows: Sequence[Row], path: Path) -> None:
    """Plot the ratio of goodputs against the number of jobs, for each rate, in a panel for each size of jobs."""
    sizes = list(dict.fromkeys(row["workers"] for row in rows))
    figure = Figure(figsize=(5 * len(sizes), 3.8), layout="constrained")
    panels = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axes, workers in zip(panels, sizes, strict=True):
        axes.axhline(1, color="black", linestyle=":", linewidth=1)
        for colour, link in zip(COLOURS[1:], LINKS, strict=False):
            found = [row for row in rows if (row["workers"], row["link"]) == (workers, link)]
            if found:
                jobs = [row["jobs"] for row in found]
                ratios = [row["policies"][1]["ratios"][LEASED] for row in found]
                axes.plot(jobs, ratios, "o-", color=colour, label=link)
        axes.set_xticks(JOBS)
        axes.set_xlabel(f"jobs of {workers} workers; slots to lease for 2")
    panels[0].set_ylabel("goodput on shared slots /\non leased slots or gloo")
    panels[0].set_ylim(bottom=0)
    panels[-1].legend(frameon=False)
    finish(figure, path)
