# SPDX-License-Identifier: Apache-2.0
"""How sums scale with the threads of the switch and of the workers, for machines with many processors.

    sudo .venv/bin/python -m tests.bench.cores [--threads 1 --threads 4] [--packet-threads 1] [--folder results/cores]
        [--quick]

Writes FOLDER/cores.json and prints two Markdown tables: the program's packets in process, and sums of several workers
beside gloo over bridges. A speed-up is gloo's time divided by inagg's. tests.bench.worker_path measures a worker alone.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from inagg_contract.program import inagg_p4
from inagg_switch.bench import measure, read_load
from inagg_switch.switch import Switch
from inagg_testbed.bench.allreduce import AllReduceBench, run_bench
from inagg_testbed.bench.plan import Case
from inagg_testbed.network.links import LinkSpec

THREADS = (1, 2, 4, 8)
PACKET_THREADS = (1, 2)
BACKENDS = ("gloo", "inagg:32", "inagg:8")
# Link, workers, elements.
SUMS = (
    ("unshaped", 4, 10_000_000),
    ("unshaped", 8, 4_000_000),
    ("10gbit", 4, 10_000_000),
    ("unshaped", 4, 100_000),
)


def in_process(threads: int) -> float:
    """Packets a second of a job of four workers, without ports."""
    with Switch.from_p4(inagg_p4(), threads=threads) as program:
        load = read_load(program, inagg_p4().parent / "bench" / "four_workers.vectors")
        return measure(program, load, packets=2_000_000).packets_per_second


def sums(
    threads: int, packet_threads: int, link: str, workers: int, elements: int, iterations: int
) -> list[dict[str, Any]]:
    """The rows of one testbed. Raises LauncherError; SystemExit for a wrong sum."""
    os.environ["INAGG_PACKET_THREADS"] = str(packet_threads)
    case = Case(workers=workers, elements=elements, backends=BACKENDS, iterations=iterations, warmup=3)
    bench = AllReduceBench(
        link_name=link, link=LinkSpec.parse(link), cases=(case,), gloo_over="bridge", threads=threads
    )
    with tempfile.TemporaryDirectory() as results:
        outcome = run_bench(bench, Path(results), on_stage=_say, on_progress=lambda _done, _all: None)
    if outcome.wrong:
        sys.exit("\n".join(outcome.wrong))
    return [{**row, "threads": threads, "packet_threads": packet_threads} for row in outcome.rows]


def _say(stage: str) -> None:
    print(stage, file=sys.stderr, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, action="append", help="may be given several times")
    parser.add_argument("--packet-threads", type=int, action="append", help="of each worker; likewise")
    parser.add_argument("--folder", type=Path, default=Path("results/cores"))
    parser.add_argument("--quick", action="store_true", help="three iterations, to see that it works")
    given = parser.parse_args()
    counts = given.threads or [count for count in THREADS if count <= len(os.sched_getaffinity(0))]
    found: dict[str, Any] = {"processors": os.cpu_count(), "in_process": {}, "sums": []}
    given.folder.mkdir(parents=True, exist_ok=True)
    print("| threads | packets a second, in process |\n|---|---|", flush=True)
    for count in counts:
        found["in_process"][count] = in_process(count)
        print(f"| {count} | {found['in_process'][count]:,.0f} |", flush=True)
    print("\n| link | workers | float32 | threads | packet threads | gloo | inagg:32 | inagg:8 |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    numbers = itertools.product(SUMS, counts, given.packet_threads or PACKET_THREADS)
    for (link, workers, elements), count, each in numbers:
        rows = sums(count, each, link, workers, elements, 3 if given.quick else 20)
        found["sums"] += rows
        (given.folder / "cores.json").write_text(json.dumps(found, indent=2) + "\n")
        shown = [f"{row['time_ms']['p50']:.3g} ms, {row['ratio_to_gloo']:.2f}x" for row in rows]
        print(f"| {link} | {workers} | {elements:,} | {count} | {each} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
