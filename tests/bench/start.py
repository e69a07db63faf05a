# SPDX-License-Identifier: Apache-2.0
"""How long a testbed takes to its first sum, by number of workers.

    sudo .venv/bin/python -m tests.bench.start [--workers 4 --workers 64] [--aggregation leased] [--link 100mbit]

Columns, in seconds: `up`, until the network, the switch and the controller are ready; `processes`, until all ranks
have imported torch and inagg and are about to make their group; `group`, until all have made it; `sum`, until all have
the result of an all-reduce of 1,000 floats; `down`, until all is gone.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import open_testbed
from inagg_testbed.network.workers import Event

WORKERS = (2, 8, 16, 32, 64)
PATIENCE_S = 600.0
_STAGES = ("processes", "group", "sum")
_RANK = """
import sys
from pathlib import Path
import torch, torch.distributed as dist
import inagg
from inagg_testbed.events import EventLog
torch.set_num_threads(1)
log = EventLog(Path(sys.argv[1]))
log.write("processes")
dist.init_process_group("inagg")
log.write("group")
tensor = torch.ones(1000)
dist.all_reduce(tensor)
assert tensor.tolist() == [float(dist.get_world_size())] * 1000
log.write("sum")
dist.barrier()
dist.destroy_process_group()
"""


def seconds(workers: int, aggregation: str, link: str, results: Path) -> dict[str, float]:
    """The seconds of each stage."""
    begun = time.monotonic()
    last: dict[str, float] = {}
    with open_testbed(
        hosts=workers,
        link=LinkSpec.parse(link),
        results_root=results,
        environment={"INAGG_AGGREGATION": aggregation},
    ) as testbed:
        last["up"] = time.monotonic()

        def on_event(_rank: int, event: Event) -> None:
            last[event["event"]] = time.monotonic()

        group = testbed.launch([sys.executable, "-c", _RANK, "{events}"], name="start")
        group.follow(on_event, timeout_s=PATIENCE_S, watch=testbed.services)
        leaving = time.monotonic()
    ends = [begun, *(last[stage] for stage in ("up", *_STAGES))]
    spent = {stage: end - start for stage, start, end in zip(("up", *_STAGES), ends, ends[1:], strict=False)}
    return {**spent, "down": time.monotonic() - leaving}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--aggregation", default="leased")
    parser.add_argument("--link", default="100mbit")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for workers in arguments.workers or WORKERS:
            found = seconds(workers, arguments.aggregation, arguments.link, Path(folder))
            print(
                f"{workers:3} workers  "
                + "  ".join(f"{stage} {spent:6.1f}" for stage, spent in found.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
