# SPDX-License-Identifier: Apache-2.0
"""Training goes on without the controller, and when it starts again (docs/protocol.md, 7.7)."""

import re
import signal
import sys
import time

import pytest

from inagg_testbed.network.testbed import Testbed
from tests.testbed.conftest import OpenTestbed
from tests.testbed.programs import launch, right_sum
from tests.testbed.steps import STEPS, outcome_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

LONG = pytest.mark.long
KINDS = ["leased", pytest.param("shared", marks=LONG), pytest.param("server", marks=LONG)]


def restart_controller(testbed: Testbed) -> None:
    """Kill the controller and start it again. Returns when it serves."""
    testbed.restart("controller").wait_for_line("ready", timeout_s=60)


@pytest.mark.parametrize("kind", KINDS)
def test_training_does_not_notice_a_restart_of_the_controller(
    open_network: OpenTestbed, undisturbed: str, kind: str
) -> None:
    with open_network(hosts=4, link="100mbit") as testbed:
        group = launch(testbed, STEPS, {"INAGG_AGGREGATION": kind})
        for _ in range(2):
            restart_controller(testbed)
        assert testbed.controller is not None
        jobs = testbed.controller.jobs()
        outcome = outcome_of(group)
    assert (outcome.digest, outcome.to) == (undisturbed, [])
    # On a busy machine the steps may be done.
    assert {job.state for job in jobs} <= {"running", "finished"}


def test_a_group_that_is_made_while_the_controller_is_away_waits_for_it(open_network: OpenTestbed) -> None:
    with open_network(hosts=4, link="100mbit") as testbed:
        testbed.kill("controller")
        group = testbed.launch([sys.executable, "-c", right_sum(70_001)], name="early")
        log = group.workers[0].process.log_path
        wait_until(
            lambda: log.exists() and "no controller takes connections" in log.read_text(), "rank 0 warns", 60
        )
        restart_controller(testbed)
        group.follow(lambda _rank, _event: None, timeout_s=60)


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_when_the_controller_is_gone_for_good(
    open_network: OpenTestbed, undisturbed: str, kind: str
) -> None:
    with open_network(hosts=4, link="100mbit") as testbed:
        group = launch(testbed, STEPS, {"INAGG_AGGREGATION": kind})
        testbed.kill("controller")
        outcome = outcome_of(group)
    assert (outcome.digest, outcome.to) == (undisturbed, [])


def test_a_rank_that_dies_without_a_controller_is_named_by_all_others(open_network: OpenTestbed) -> None:
    with open_network(hosts=4, link="100mbit") as testbed:
        group = launch(testbed, STEPS)
        testbed.kill("controller")
        time.sleep(1)  # some steps
        group.workers[2].process.signal(signal.SIGKILL)
        killed = time.monotonic()
        others = [worker for worker in group.workers if worker.rank != 2]
        wait_until(lambda: all(one.process.poll() is not None for one in others), "the others end", 60)
        seconds = time.monotonic() - killed
        logs = [worker.process.log_path.read_text() for worker in others]
    lost = re.compile(
        r"PeerLostError: .*lost rank 2 \(h3, 10\.0\.0\.3\): its process has ended, and the controller"
    )
    assert all(map(lost.search, logs))
    assert seconds < 20  # ten on an idle machine


def test_a_controller_that_starts_again_while_a_job_changes_its_way_goes_on_with_that(
    open_network: OpenTestbed, undisturbed: str
) -> None:
    with open_network(hosts=4, link="100mbit") as testbed:
        group = launch(testbed, STEPS)
        testbed.kill("switch")
        assert testbed.controller is not None
        controller = testbed.controller
        wait_until(lambda: {job.state for job in controller.jobs()} == {"changing"}, "the jobs change", 60)
        testbed.kill("controller")
        testbed.restart("switch")
        restart_controller(testbed)
        outcome = outcome_of(group)
    assert (outcome.digest, outcome.to) == (undisturbed, ["s1"])


@pytest.mark.long
def test_training_goes_on_when_the_switch_before_the_controller_is_away_for_long(
    open_network: OpenTestbed, undisturbed: str
) -> None:
    """Longer than any option of on_path_loss is tried, and than hosts may be silent."""
    with open_network(hosts=4, link="100mbit") as testbed:
        group = launch(testbed, STEPS)
        testbed.kill("switch")
        time.sleep(15)
        assert all(worker.process.poll() is None for worker in group.workers)
        testbed.restart("switch")
        outcome = outcome_of(group)
    assert (outcome.digest, outcome.to) == (undisturbed, ["s1"])


@pytest.mark.long
def test_a_job_whose_only_switch_stays_away_says_so(open_network: OpenTestbed) -> None:
    with open_network(hosts=4, link="100mbit") as testbed:
        group = launch(testbed, STEPS)
        testbed.kill("switch")
        killed = time.monotonic()
        wait_until(lambda: all(one.process.poll() is not None for one in group.workers), "all end", 90)
        seconds = time.monotonic() - killed
        errors = [worker.process.reported_error() for worker in group.workers]
    named = re.compile(r"JobError: .*switch s1 (was lost|\(10\.0\.0\.253\), or the way there, is down)")
    assert all(named.search(error or "") for error in errors), errors
    assert 25 < seconds < 60
