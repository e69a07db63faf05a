# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the switch's tests that need a network, a program for the ports, or a running server."""

import ctypes
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inagg_switch.p4runtime.errors import Code
from inagg_switch.p4runtime.server import SwitchServer
from inagg_switch.ports import Ports
from inagg_switch.switch import Switch
from tests import INAGG_P4
from tests.switch import NATIVE
from tests.switch.network import Network
from tests.switch.p4runtime.client import SMALL_P4, Controller
from tests.switch.p4runtime.objects import OBJECTS_P4

_serial = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("netns") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root: network namespaces"))


@pytest.fixture
def network() -> Iterator[Callable[[int], Network]]:
    """Makes a Network of so many hosts; removed with everything in it after the test."""
    made: list[Network] = []

    def make(hosts: int) -> Network:
        made.append(Network(f"isw{os.getpid()}x{next(_serial)}", hosts))
        made[-1].create()
        return made[-1]

    yield make
    for one in made:
        one.remove()


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 10.0) -> None:
    """Waits for a condition; fails the test at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., None]:
    return wait_until


class HubProgram:
    """ports/hub.cpp, loaded: what inagg_switch.ports needs of a program."""

    def __init__(self, library: Path) -> None:
        class Api(ctypes.Structure):
            _fields_ = (
                ("abi_version", ctypes.c_uint32),
                (
                    "create",
                    ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p),
                ),
                ("destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
            )

        self._library = ctypes.CDLL(str(library))
        self._library.isw_program_v1.restype = ctypes.POINTER(Api)
        api = self._library.isw_program_v1()
        self.api_address = ctypes.cast(api, ctypes.c_void_p).value or 0
        self.handle = api.contents.create(0, None, None)
        self._destroy = api.contents.destroy

    def close(self) -> None:
        self._destroy(self.handle)


@pytest.fixture(scope="session")
def hub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("hub") / "hub.so"
    source = Path(__file__).parent / "ports" / "hub.cpp"
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{NATIVE}", str(source), "-o", str(output)]
    subprocess.run(command, check=True, timeout=120)
    return output


@pytest.fixture
def hub_program(hub_library: Path) -> Iterator[Callable[[list[int]], HubProgram]]:
    """Makes a hub between the given ports."""
    from inagg_switch._ports import ProgramControl

    made: list[HubProgram] = []

    def make(ports: list[int]) -> HubProgram:
        made.append(HubProgram(hub_library))
        ProgramControl(made[-1].api_address, made[-1].handle).multicast_set(1, [(port, 0) for port in ports])
        return made[-1]

    yield make
    for program in made:
        program.close()


@pytest.fixture
def switch_command() -> list[str]:
    """The command `inagg-switch`."""
    return [sys.executable, "-m", "inagg_switch.cli"]


@pytest.fixture
def p4runtime_server(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Starts a switch without ports and without a program; gives the address of its P4Runtime server."""
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
def connect():
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
def address(p4runtime_server) -> str:
    return p4runtime_server()


@pytest.fixture
def primary(address, connect) -> Controller:
    controller = connect(address)
    controller.arbitrate()
    assert controller.next().arbitration.status.code == Code.OK
    return controller


@pytest.fixture
def configured(primary, inagg) -> Controller:
    primary.configure(inagg)
    return primary


@pytest.fixture
def sw() -> Iterator[Switch]:
    """p4runtime/objects.p4."""
    with Switch.from_p4(OBJECTS_P4) as made:
        yield made


@pytest.fixture
def client(sw: Switch, tmp_path: Path, connect: Callable[..., Controller]) -> Iterator[Controller]:
    """The primary controller of a switch that runs `sw`."""
    server = SwitchServer(Ports([]), device_id=1, address=f"unix:{tmp_path}/s.sock")
    server.load(sw)
    server.start()
    made = connect(f"unix:{tmp_path}/s.sock")
    made.arbitrate()
    assert made.next().arbitration.status.code == Code.OK
    yield made
    server.stop()
