# SPDX-License-Identifier: Apache-2.0
"""The controller and the server of sums need no privileges: they run as the user nobody."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inagg.membership.control import ControlClient
from tests.free_ports import free_port
from tests.privileges import as_nobody, capabilities_of, home_of_nobody, user_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")

CAP_DAC_READ_SEARCH = 2  # linux/capability.h


class Started:
    """Processes that are ended with the test."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def __call__(self, *command: str) -> subprocess.Popen[str]:
        """Start a command and wait until it prints "ready"."""
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            process.kill()
            raise AssertionError(process.communicate()[1])
        return process


@pytest.fixture
def start() -> Iterator[Started]:
    started = Started()
    yield started
    for process in started.processes:
        process.kill()
        process.communicate()


@pytest.fixture
def home() -> Iterator[Path]:
    with home_of_nobody() as folder:
        yield folder


def test_controller_and_server_run_as_nobody(start: Started, home: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    nobody = as_nobody(home)
    controller = start(*nobody, sys.executable, "-m", "inagg_controller", "--no-switch", "--listen", address)
    token = home / "inagg" / "controller.token"
    server = start(
        *nobody,
        *(str(Path(sys.executable).with_name("inagg-server")), "--controller", f"http://{address}"),
        *("--token-file", str(token), "--listen", f"127.0.0.1:{free_port()}", "--name", "a"),
    )
    for process in (controller, server):
        assert user_of(process.pid) != 0
        found = capabilities_of(process.pid)
        assert found["CapEff"] == found["CapBnd"] == {CAP_DAC_READ_SEARCH}
    with ControlClient(f"http://{address}", token=token.read_text().strip()) as client:
        assert [one.name for one in client.health().servers] == ["a"]
        created = client.create_job(1, 4, aggregation="server", servers="registered")
        assert created.state == "joining"
    assert {path.name for path in token.parent.iterdir()} >= {
        "controller.token",
        f"controller-{address.replace(':', '-')}.sqlite",
    }
    for process in (server, controller):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0, errors
