# SPDX-License-Identifier: Apache-2.0
"""A registered server that fails: its agent ends its jobs at the controller, and their ranks see the reason."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inagg._core import Server
from inagg.errors import InaggError
from inagg.membership.control import ControlClient
from inagg_server.agent import ServerAgent
from tests.broken_sockets import COMPLAINT, break_socket
from tests.controller.launching import CommandLine, Launcher, read_line
from tests.controller.serving import OPERATORS_TOKEN
from tests.waiting import wait_until

HERE = "127.0.0.1"
# Less than the time after which the controller gives up a server that it does not hear.
SOON_S = 3.0


@pytest.fixture
def client(free_port: int, token_file: Path) -> Iterator[ControlClient]:
    """Of a controller without a switch."""
    launcher = Launcher(
        CommandLine({"no-switch": True, "listen": f"{HERE}:{free_port}", "token-file": token_file})
    )
    assert read_line(launcher()) == "ready"
    with ControlClient(f"http://{HERE}:{free_port}", token=OPERATORS_TOKEN) as client:
        yield client
    launcher.close()


def test_the_ranks_of_a_server_that_fails_see_the_reason_at_once(client: ControlClient) -> None:
    server, ready = Server(local=(HERE, 0), memory=1 << 20), threading.Event()
    with ThreadPoolExecutor(1) as other:
        agent = ServerAgent(client, server, "a", 1 << 20)
        ending = other.submit(agent.run, threading.Event(), ready.set)
        assert ready.wait(10)
        job = client.create_job(1, 4, aggregation="server", servers="registered", hosts=[HERE])
        client.register(job.id, 0, ip=HERE, udp_port=4000)
        client.wait_running(job.id, timeout_s=10)
        break_socket(server.local_address)
        broken = time.monotonic()
        wait_until(lambda: client.heartbeat(job.id, 0).state == "failed", "the rank sees it")
        assert time.monotonic() - broken < SOON_S
        assert client.heartbeat(job.id, 0).reason == f"server a: its thread has ended: {COMPLAINT}"
        with pytest.raises(InaggError, match=f"the server cannot go on: its thread has ended: {COMPLAINT}"):
            ending.result(10)
        assert client.health().servers == ()
    server.close()
