# SPDX-License-Identifier: Apache-2.0
"""A switch dies in mid-training, and ranks lose the controller with it, because they reach it through that switch.

The switches are the model's. The port of the controller's host may be at any of them.
"""

import math
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from inagg_testbed.network.fabric import CONTROL_PORT, Fabric, SwitchPort
from inagg_testbed.network.lifecycle import manifests, tagged_processes
from inagg_testbed.network.workers import WorkerGroup
from tests.testbed.conftest import OpenTestbed
from tests.testbed.programs import PROGRAM, SUMS, launch, restart, sum_rightly, switch_process
from tests.waiting import BUSY_S

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

# Of these the kernel takes 3 s to see that the controller's host is silent, and pings to the switch take 4 s.
MOST_S = 10.0 + BUSY_S

LONG = pytest.mark.long

# Longer than a dead switch takes, and shorter than a rank waits for the controller.
CUT_OFF_S = 12.0

# Nobody sends: all wait in gloo.
GLOO = f"""{PROGRAM}
dist.all_reduce(torch.ones(100_000))
print("in the middle", flush=True)
dist.recv(torch.ones(1), src=1 if dist.get_rank() == 0 else 0)
"""
SLOW = f"""{PROGRAM}
import time
tensor = torch.ones(100_000)
dist.all_reduce(tensor)
print("in the middle", flush=True)
if dist.get_rank() == 0:
    time.sleep({CUT_OFF_S + 2})
dist.all_reduce(tensor)
assert bool((tensor == 4).all())
dist.destroy_process_group()
"""


def seconds_until_each_ends(group: WorkerGroup) -> list[float]:
    """By rank, from now on; infinity for those that run longer than a minute."""
    start = time.monotonic()
    seconds = [math.inf] * len(group.workers)
    while (now := time.monotonic() - start) < 60 and math.inf in seconds:
        for worker in group.workers:
            if worker.process.poll() is not None:
                seconds[worker.rank] = min(seconds[worker.rank], now)
        time.sleep(0.01)
    return seconds


@pytest.mark.parametrize(
    ("topology", "controlled_from", "name", "program"),
    [
        pytest.param("star", "s1", "s1", SUMS, id="star"),
        pytest.param("tree:2x2", "root", "root", SUMS, id="root", marks=LONG),
        pytest.param("leaf-spine:2x2x2", "spine1", "leaf2", SUMS, id="leaf", marks=LONG),
        pytest.param("leaf-spine:2x2x2", "spine1", "leaf2", GLOO, id="leaf, gloo"),
        pytest.param("leaf-spine:2x2x2", "leaf1", "leaf1", SUMS, id="leaf of the controller"),
        pytest.param(
            "leaf-spine:2x2x2", "leaf1", "leaf1", GLOO, id="leaf of the controller, gloo", marks=LONG
        ),
    ],
)
def test_every_rank_names_a_dead_switch_in_time_and_the_next_job_is_right(
    open_network: OpenTestbed, folder: Path, topology: str, controlled_from: str, name: str, program: str
) -> None:
    fabric = Fabric.parse(topology, hosts=4)
    others = [switch for switch in fabric.switches if switch != controlled_from]
    fabric = replace(fabric, switches=(controlled_from, *others))
    with open_network(fabric=fabric) as testbed:
        group = launch(testbed, program, {"INAGG_ON_PATH_LOSS": "fail"})
        dead = switch_process(testbed, name)
        dead.signal(signal.SIGKILL)
        seconds = seconds_until_each_ends(group)
        errors = {worker.rank: worker.process.reported_error() for worker in group.workers}
        group.stop()
        named = re.compile(rf"JobError: .*\bswitch(es.*)? {name}\b")
        assert [rank for rank, error in errors.items() if not named.search(error or "")] == [], errors
        assert max(seconds) < MOST_S, seconds
        restart(testbed, name)
        sum_rightly(testbed, watch=testbed.services)
    assert tagged_processes(testbed.run.id, besides=0) == []
    assert manifests(folder / "state") == {}


def test_a_job_with_a_slow_rank_outlasts_a_controller_that_is_cut_off(open_network: OpenTestbed) -> None:
    with open_network(hosts=2) as testbed:
        group = launch(testbed, SLOW)
        port = SwitchPort("s1", CONTROL_PORT)
        testbed.set_link(port, "down")
        time.sleep(CUT_OFF_S)
        testbed.set_link(port, "up")
        group.follow(lambda _rank, _event: None, timeout_s=60, watch=testbed.services)
