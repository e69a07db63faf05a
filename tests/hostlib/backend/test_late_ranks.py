# SPDX-License-Identifier: Apache-2.0
"""Every rank names the ranks that are late, and what makes them late, with a job and without one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from inagg_testbed.network.topology import run_in_namespace
from tests.hostlib.backend.late_ranks_worker import BUSY_RANK, BUSY_S, LOADING_RANK, LOADING_S

WORKER = Path(__file__).with_name("late_ranks_worker.py")
RANKS = 4
SLOW_RANK, SLOW_LINK = 2, "300kbit"
WITHOUT_JOB = {"INAGG_FALLBACK": "inner", "INAGG_CONTROLLER": "http://127.0.0.1:9"}
WAYS = [("switch", {}), ("inner", WITHOUT_JOB)]

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    folder = tmp_path_factory.mktemp("late-ranks")
    with open_testbed(hosts=RANKS, link=LinkSpec.parse("unshaped"), results_root=folder) as opened:
        yield opened


def explained(testbed: Testbed, name: str, *arguments: str, **environment: str) -> list[dict[str, Any]]:
    """The event of each rank."""
    found: list[dict[str, Any]] = [{}] * RANKS
    command = [sys.executable, str(WORKER), "{events}", *arguments]
    group = testbed.launch(command, name=name, environment=environment)
    group.follow(lambda rank, event: found.__setitem__(rank, event), timeout_s=120, watch=testbed.services)
    return found


@contextmanager
def slow_link(testbed: Testbed, host: int) -> Iterator[None]:
    """In the block what the host sends queues at its interface."""
    interface, pid = testbed.network.gloo_interface(host), testbed.network.host(host).pid
    run_in_namespace(pid, f"tc qdisc add dev {interface} root tbf rate {SLOW_LINK} burst 2000 latency 2s")
    try:
        yield
    finally:
        run_in_namespace(pid, f"tc qdisc del dev {interface} root")


@pytest.mark.parametrize(("path", "environment"), WAYS)
def test_computation_and_data_loading(testbed: Testbed, path: str, environment: dict[str, str]) -> None:
    for rank, event in enumerate(explained(testbed, path, **environment)):
        assert event["path"] == path
        named = [(late["rank"], late["cause"]) for late in event["late"]]
        assert named == [(BUSY_RANK, "computation"), (LOADING_RANK, "data loading")], event["waits"]
        for late, late_s in zip(event["late"], (BUSY_S, LOADING_S), strict=True):
            assert late["late_s"] == pytest.approx(late_s, rel=0.4)
        report = " ".join(event["report"].split())
        for late_rank, cause in named:
            which = "this rank" if late_rank == rank else f"rank {late_rank} (h{late_rank + 1}"
            assert f"a sum for {which}" in report
            assert f": {cause}" in report


def test_the_network(testbed: Testbed) -> None:
    with slow_link(testbed, SLOW_RANK + 1):
        events = explained(testbed, "network", "prompt", **WITHOUT_JOB)
    for event in events:
        assert (event["late"][0]["rank"], event["late"][0]["cause"]) == (SLOW_RANK, "network"), event["waits"]
