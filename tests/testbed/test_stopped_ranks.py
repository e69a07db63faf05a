# SPDX-License-Identifier: Apache-2.0
"""A rank's process is stopped (SIGSTOP), or the network between ranks is cut while all of them reach the controller."""

import re
import signal
from collections.abc import Iterator

import pytest

from inagg_testbed.network.testbed import Testbed
from inagg_testbed.network.topology import run_in_namespace
from inagg_testbed.network.workers import WorkerGroup
from tests.testbed.conftest import OpenTestbed
from tests.testbed.programs import PROGRAM, SUMS, launch
from tests.waiting import BUSY_S, wait_until

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

HOSTS = 3
MOST_S = 10.0 + BUSY_S

GATHERS = f"""{PROGRAM}
while True:
    dist.all_gather([torch.empty(100) for _ in range(dist.get_world_size())], torch.ones(100))
    print("in the middle", flush=True)
"""
WAITS = f"""{PROGRAM}
print("in the middle", flush=True)
dist.recv(torch.ones(1), src=1 if dist.get_rank() == 0 else 0)
"""
# Longer than the time after which a rank that is stopped is lost.
BUSY = f"""{PROGRAM}
import ctypes
tensor = torch.ones(100_000)
dist.all_reduce(tensor)
print("in the middle", flush=True)
if dist.get_rank() == 1:
    ctypes.PyDLL(None).sleep(15)  # with the GIL held
dist.all_reduce(tensor)
assert bool((tensor == dist.get_world_size() ** 2).all())
dist.barrier()
dist.destroy_process_group()
"""
LONG = pytest.mark.long


@pytest.fixture(scope="module")
def network(open_network: OpenTestbed) -> Iterator[Testbed]:
    with open_network(hosts=HOSTS) as testbed:
        yield testbed


def errors_of(group: WorkerGroup, ranks: set[int]) -> dict[int, str]:
    """The errors that end the ranks' programs, which must come in time."""
    processes = {rank: group.workers[rank].process for rank in ranks}
    wait_until(
        lambda: all(process.reported_error() for process in processes.values()), "all have errors", MOST_S
    )
    return {rank: process.reported_error() or "" for rank, process in processes.items()}


@pytest.mark.parametrize(
    ("way", "program"),
    [
        pytest.param("leased", SUMS, id="leased"),
        pytest.param("shared", SUMS, id="shared", marks=LONG),
        pytest.param("server", SUMS, id="server", marks=LONG),
        pytest.param("leased", GATHERS, id="gathers"),
        pytest.param("server", WAITS, id="waits"),
    ],
)
def test_the_others_name_a_stopped_rank_and_it_learns_that_it_was_given_up(
    network: Testbed, way: str, program: str, request: pytest.FixtureRequest
) -> None:
    group = launch(network, program, {"INAGG_AGGREGATION": way}, request.node.callspec.id)
    stopped = group.workers[1].process
    stopped.signal(signal.SIGSTOP)
    errors = errors_of(group, {0, 2})
    for error in errors.values():
        assert re.search(r"PeerLostError: .*lost rank 1\b.*stopped", error), errors
    stopped.signal(signal.SIGCONT)
    (error,) = errors_of(group, {1}).values()
    group.stop()
    given_up = r"this rank was given up: its process was stopped or suspended for about (8|9|1\d) s"
    assert re.search(rf"JobError: job \d+, rank 1\b.*: {given_up}", error), error


def cut(testbed: Testbed, one: int, other: int) -> None:
    """Cut the way between two ranks' hosts: each knows a wrong station for the other's address."""
    for here, there in ((one, other), (other, one)):
        device = testbed.network.gloo_interface(here + 1)
        run_in_namespace(
            testbed.network.pid_of(f"h{here + 1}"),
            f"ip neigh replace 10.0.0.{there + 1} lladdr 02:00:00:00:ff:ff nud permanent dev {device}",
        )


@pytest.mark.parametrize(
    ("hosts", "program"),
    [
        pytest.param(2, SUMS, id="2 sum", marks=LONG),
        pytest.param(4, SUMS, id="4 sum"),
        pytest.param(2, GATHERS, id="gathers"),
        pytest.param(3, WAITS, id="waits", marks=LONG),
    ],
)
def test_ranks_name_those_that_the_network_between_them_does_not_reach(
    open_bridge: OpenTestbed, hosts: int, program: str
) -> None:
    with open_bridge(hosts=hosts) as testbed:
        group = launch(testbed, program)
        for other in range(hosts - 1):
            cut(testbed, hosts - 1, other)
        errors = errors_of(group, set(range(hosts)))
        group.stop()
    for rank, error in errors.items():
        named = rf"{hosts - 1} \(h{hosts}, 10" if rank < hosts - 1 else r"\d \(h\d, 10"
        assert re.search(rf"PeerLostError: .*lost ranks? (.*, )?{named}", error), errors


@pytest.mark.parametrize(
    "way", ["leased", pytest.param("shared", marks=LONG), pytest.param("server", marks=LONG)]
)
def test_a_rank_that_is_busy_with_the_gil_held_is_not_given_up(network: Testbed, way: str) -> None:
    group = launch(network, BUSY, {"INAGG_AGGREGATION": way}, f"busy-{way}")
    group.follow(lambda _rank, _event: None, timeout_s=60, watch=network.services)
