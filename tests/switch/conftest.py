# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the switch's tests that need a network, a program or a running server."""

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inagg_switch.p4runtime.errors import Code
from inagg_switch.p4runtime.server import SwitchServer
from inagg_switch.ports import Ports
from inagg_switch.switch import Switch
from tests import INAGG_P4
from tests.switch.network import MakeNetwork, Network
from tests.switch.p4runtime.client import SMALL_P4, Connect, Controller
from tests.switch.p4runtime.objects import OBJECTS_P4

_serial = itertools.count()


@pytest.fixture
def network() -> Iterator[MakeNetwork]:
    """Makes a Network with the given number of hosts. After the test it is removed with its processes."""
    made: list[Network] = []

    def make(hosts: int) -> Network:
        made.append(Network(f"isw{os.getpid()}x{next(_serial)}", hosts))
        made[-1].create()
        return made[-1]

    yield make
    for one in made:
        one.remove()


@pytest.fixture
def switch_command() -> list[str]:
    """The command `inagg-switch`."""
    return [sys.executable, "-m", "inagg_switch.cli"]


@pytest.fixture
def p4runtime_server(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Starts a switch without ports and without a program; returns the address of its P4Runtime server."""
    started: list[SwitchServer] = []

    def start() -> str:
        address = f"unix:{tmp_path}/switch{len(started)}.sock"
        started.append(SwitchServer(Ports([]), device_id=1, address=address))
        started[-1].start()
        return address

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def inagg() -> Switch:
    return Switch.from_p4(INAGG_P4)


@pytest.fixture(scope="session")
def small() -> Switch:
    return Switch.from_p4(SMALL_P4)


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects controllers; they are closed after the test."""
    made: list[Controller] = []

    def connect(address: str, election_id: int | None = 1, **options: int) -> Controller:
        names = ((f"grpc.{name}", value) for name, value in options.items())
        made.append(Controller(address, election_id, tuple(names)))
        return made[-1]

    yield connect
    for controller in made:
        controller.close()


@pytest.fixture
def address(p4runtime_server: Callable[[], str]) -> str:
    return p4runtime_server()


@pytest.fixture
def primary(address: str, connect: Connect) -> Controller:
    controller = connect(address)
    controller.arbitrate()
    assert controller.next().arbitration.status.code == Code.OK
    return controller


@pytest.fixture
def configured(primary: Controller, inagg: Switch) -> Controller:
    primary.configure(inagg)
    return primary


@pytest.fixture
def sw() -> Iterator[Switch]:
    """p4runtime/objects.p4."""
    with Switch.from_p4(OBJECTS_P4) as made:
        yield made


@pytest.fixture
def client(sw: Switch, tmp_path: Path, connect: Connect) -> Iterator[Controller]:
    """The primary controller of a switch that runs `sw`."""
    server = SwitchServer(Ports([]), device_id=1, address=f"unix:{tmp_path}/s.sock")
    server.load(sw)
    server.start()
    made = connect(f"unix:{tmp_path}/s.sock")
    made.arbitrate()
    assert made.next().arbitration.status.code == Code.OK
    yield made
    server.stop()
