# SPDX-License-Identifier: Apache-2.0
"""What it costs a job without faults that it could change its way (docs/protocol.md, 6.4): it keeps its last results.

    sudo .venv/bin/python -m tests.bench.readiness [--elements 4000000] [--pairs 200] [--link 1gbit]

Two ranks have two groups, one with on_path_loss=fail and one with the default, and sum in them in turns, the first one
first in every other pair. Prints, for each kind of link, the median over the pairs of the ready group's time divided by
the other's, with quartiles, and the same for the processor time of rank 0, which other processes disturb less.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import open_testbed

LINKS = ("unshaped", "1gbit")
SLOTS = 64
PROGRAM = """
import statistics, sys, time
import torch, torch.distributed as dist
import inagg
elements, pairs = map(int, sys.argv[1:])
dist.init_process_group("inagg")
tries = ("fail",), ("same", "servers")
waiting, ready = (dist.new_group(pg_options=inagg.Options(on_path_loss=one)) for one in tries)
inputs = torch.randn(elements)

def seconds(group):
    tensor = inputs.clone()
    dist.barrier()
    began = time.perf_counter(), time.process_time()
    dist.all_reduce(tensor, group=group)
    return time.perf_counter() - began[0], time.process_time() - began[1]

for group in (waiting, ready) * 3:
    seconds(group)
ratios = []
for pair in range(pairs):
    order = (waiting, ready) if pair % 2 else (ready, waiting)
    took = {group: seconds(group) for group in order}
    ratios.append([mine / other for mine, other in zip(took[ready], took[waiting])])
for name, column in zip(("time", "processor time"), zip(*ratios)):
    first, median, third = statistics.quantiles(column)
    print(f"ratio of {name}: {median:.4f} (quartiles {first:.3f}, {third:.3f}; {pairs} pairs)", flush=True)
dist.destroy_process_group()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--elements", type=int, default=4_000_000)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--link", action="append", help="unshaped, 1gbit; may be given several times")
    asked = parser.parse_args()
    for link in asked.link or LINKS:
        with (
            tempfile.TemporaryDirectory() as results,
            open_testbed(hosts=2, link=LinkSpec.parse(link), results_root=Path(results)) as testbed,
        ):
            command = [sys.executable, "-c", PROGRAM, str(asked.elements), str(asked.pairs)]
            group = testbed.launch(command, name="readiness", slots=SLOTS)
            group.follow(lambda _rank, _event: None, timeout_s=600, watch=testbed.services)
            log = group.workers[0].process.log_path.read_text()
            for line in log.splitlines():
                if line.startswith("ratio"):
                    print(f"{link}: {line}", flush=True)


if __name__ == "__main__":
    main()
