# SPDX-License-Identifier: Apache-2.0
"""Testbeds for tests. Each belongs to one run; other testbeds on the machine do not interfere."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inagg_testbed.network.fabric import Fabric, RankOrder
from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed
from tests.testbed.programs import launch
from tests.testbed.steps import STEPS, outcome_of

OpenTestbed = Callable[..., AbstractContextManager[Testbed]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For manifests (state) and results of the module's testbeds."""
    return tmp_path_factory.mktemp("testbed")


@pytest.fixture(scope="module")
def open_network(folder: Path) -> OpenTestbed:
    """open_network(hosts=4, link="unshaped", topology=None, fabric=None): a testbed with the switch model."""

    def opener(
        *,
        hosts: int = 4,
        link: str = "unshaped",
        topology: str | None = None,
        fabric: Fabric | None = None,
        rank_order: RankOrder = "contiguous",
        **options: Any,
    ) -> AbstractContextManager[Testbed]:
        return open_testbed(
            hosts=hosts,
            fabric=fabric if topology is None else Fabric.parse(topology, rank_order=rank_order),
            link=LinkSpec.parse(link),
            results_root=folder / "results",
            state_dir=folder / "state",
            **options,
        )

    return opener


@pytest.fixture(scope="module")
def open_bridge(open_network: OpenTestbed) -> OpenTestbed:
    """The same with a Linux bridge for each switch."""
    return partial(open_network, switch="bridge")


@pytest.fixture(scope="module")
def bridge(open_bridge: OpenTestbed) -> Iterator[Testbed]:
    """Four hosts, unshaped links."""
    with open_bridge() as testbed:
        yield testbed


@pytest.fixture(scope="module")
def undisturbed(open_network: OpenTestbed) -> str:
    """The digest of STEPS when nothing dies."""
    with open_network(hosts=4) as testbed:
        outcome = outcome_of(launch(testbed, STEPS))
    assert outcome.to == []
    return outcome.digest
