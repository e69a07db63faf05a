# SPDX-License-Identifier: Apache-2.0
"""Groups made by other means than a launcher's environment, and with devices in the name of the backend."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inagg_testbed.network.links import LinkSpec
from inagg_testbed.network.testbed import Testbed, open_testbed

SCRIPT = Path(__file__).with_name("plain_ddp.py")

pytestmark = [pytest.mark.netns, pytest.mark.usefixtures("forked_processes")]


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    with open_testbed(
        hosts=2, link=LinkSpec.parse("unshaped"), results_root=tmp_path_factory.mktemp("rendezvous")
    ) as opened:
        yield opened


@pytest.mark.parametrize(
    ("how", "backend"),
    [("tcp", "cpu:inagg,cuda:inagg"), ("file", "cuda:inagg,cpu:gloo"), ("tcp", "cpu:inagg,cuda:nccl")],
)
def test_rendezvous_by_address_or_file_with_devices_in_the_name(
    testbed: Testbed, how: str, backend: str, tmp_path: Path
) -> None:
    method = {"tcp": "tcp://10.0.0.1:29410", "file": f"file://{tmp_path}/rendezvous"}[how]
    name = backend.replace(":", "-").replace(",", "-")
    environment = {"GLOO_SOCKET_IFNAME": ""}
    command = [sys.executable, str(SCRIPT), backend, method]
    group = testbed.launch(command, name=name, environment=environment)
    group.follow(lambda _rank, _event: None, timeout_s=60, watch=testbed.services)
