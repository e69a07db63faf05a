# SPDX-License-Identifier: Apache-2.0
"""Programs make many groups at once, more than the switch has slots for."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from tests.hostlib.backend import many_groups_worker

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]

RANKS = 2
SLOTS = 1024


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    with open_testbed(
        hosts=RANKS,
        link=LinkSpec.parse("unshaped"),
        results_root=tmp_path_factory.mktemp("groups"),
        pool=SLOTS,
        controller_options=["--job-share", "0.25", "--host-share", "0.75"],  # as without a testbed
    ) as opened:
        yield opened


def run(testbed: Testbed, groups: int, **environment: str) -> list[dict[str, Any]]:
    """What each rank found."""
    found: list[dict[str, Any]] = [{}] * RANKS
    group = testbed.launch(
        [sys.executable, "-m", many_groups_worker.__name__, str(groups), "{events}"],
        name=f"groups-{groups}",
        slots=256,
        environment=environment,
    )
    group.follow(found.__setitem__, timeout_s=120, watch=testbed.services)
    return found


def test_sixty_groups_sum_at_once_on_slots_and_then_on_servers(testbed: Testbed) -> None:
    first, second = run(testbed, 60, INAGG_AGGREGATION="leased")
    assert first["ways"] == second["ways"]
    leased = first["ways"].count("leased")
    assert leased >= 10
    assert first["ways"] == ["leased"] * leased + ["server"] * (60 - leased)
    for found in (first, second):  # each has a packet thread and one of gloo; all together have a server
        assert found["threads"] <= 2 * 60 + 1
