# SPDX-License-Identifier: Apache-2.0
"""Programs that all hosts of a testbed run while a test breaks something."""

import sys
from collections.abc import Sequence

from inagg_testbed.demo.run import TrainingSpec, train
from inagg_testbed.network.processes import NodeProcess
from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.workers import WorkerGroup
from tests.waiting import wait_until

PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("inagg")
"""

# Of a training of a million parameters: some ten thousand packets of each rank.
STEPS = 4

# Sums until something ends it.
SUMS = f"""{PROGRAM}
while True:
    dist.all_reduce(torch.ones(100_000))
    print("in the middle", flush=True)
"""


def right_sum(elements: int) -> str:
    """A program that fails unless a sum of so many elements is right."""
    return f"""{PROGRAM}
tensor = torch.full(({elements},), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
assert bool((tensor == sum(range(1, dist.get_world_size() + 1))).all())
dist.barrier()
dist.destroy_process_group()
"""


def launch(
    testbed: Testbed, program: str, environment: dict[str, str] | None = None, name: str = "first"
) -> WorkerGroup:
    """Start the program on all hosts. Returns when every rank has printed "in the middle". name: new in the testbed."""
    group = testbed.launch([sys.executable, "-c", program], name=name, environment=environment)
    logs = [worker.process.log_path for worker in group.workers]
    wait_until(
        lambda: all(log.exists() and "in the middle" in log.read_text() for log in logs),
        "all ranks train",
        120,
    )
    return group


def sum_rightly(
    testbed: Testbed, elements: int = 100_000, watch: Sequence[NodeProcess] = (), name: str = "sum"
) -> None:
    """Run a job on all hosts whose sum must be right. watch: processes that must not end meanwhile. name: new in the
    testbed."""
    group = testbed.launch([sys.executable, "-c", right_sum(elements)], name=name)
    group.follow(lambda _rank, _event: None, timeout_s=120, watch=watch)


def weights(testbed: Testbed, spec: TrainingSpec) -> str:
    """The digest of the weights after a short training: the same at all ranks, or train raises WrongResultError."""
    return train(testbed, spec, STEPS, lambda *_progress: None).weights_sha256


def switch_process(testbed: Testbed, name: str) -> NodeProcess:
    """The process of a switch, among the testbed's services."""
    wanted = "switch" if testbed.network.fabric.is_star else f"switch {name}"
    (process,) = (one for one in testbed.services if one.name == wanted)
    return process


def restart(testbed: Testbed, name: str) -> None:
    """Kill the switch `name` unless it is dead, and start it again. Returns when the controller has made it ready for
    jobs."""
    again = testbed.restart("switch" if testbed.network.fabric.is_star else name)
    again.wait_for_line("ready", timeout_s=60)
    assert testbed.controller is not None
    controller = testbed.controller
    wait_until(lambda: controller.health().switch == "connected", "the controller has the switch again", 60)
    wait_until(lambda: all(link.state == "up" for link in controller.health().links), "links are up", 60)
