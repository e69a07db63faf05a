# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a program's files, switches in memory, the service with virtual time, and controllers as processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2

from inagg_contract.aggregation import AGGREGATIONS, Aggregation
from inagg_controller import service
from inagg_controller.switch.program import Program, load_program
from tests.controller.authorities import Authorities
from tests.controller.fake_server import FakeServer
from tests.controller.launching import CommandLine, Launcher
from tests.controller.memory_switch import MemorySwitch
from tests.controller.p4info import build_p4info
from tests.controller.serving import OPERATORS_TOKEN, Serving
from tests.free_ports import free_port


@pytest.fixture
def p4info() -> p4info_pb2.P4Info:
    return build_p4info()


@pytest.fixture
def program_files(tmp_path: Path, p4info: p4info_pb2.P4Info) -> tuple[Path, Path]:
    """(P4Info file, device config file)"""
    p4info_path, config_path = tmp_path / "inagg.p4info.txtpb", tmp_path / "inagg.p4"
    p4info_path.write_text(text_format.MessageToString(p4info))
    config_path.write_text("// a device config\n")
    return p4info_path, config_path


@pytest.fixture
def program(program_files: tuple[Path, Path]) -> Program:
    return load_program(*program_files)


@pytest.fixture
def memory_switch() -> MemorySwitch:
    return MemorySwitch()


@pytest.fixture
def serving(memory_switch: MemorySwitch) -> Serving:
    return Serving({"s1": memory_switch})


@pytest.fixture(params=AGGREGATIONS)
def aggregation(request: pytest.FixtureRequest) -> Aggregation:
    """Of a job of each kind. A service needs shared_slots for them."""
    found: Aggregation = request.param
    return found


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's heartbeat is answered only when its orders change."""
    monkeypatch.setattr(service, "INTERVAL_S", 60.0)


@pytest.fixture
def fake_server(tmp_path: Path) -> Iterator[FakeServer]:
    with FakeServer(tmp_path / "p4runtime") as server:
        yield server


@pytest.fixture(name="free_port")
def _free_port() -> int:
    return free_port()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "controller.token"
    path.write_text(OPERATORS_TOKEN)
    path.chmod(0o600)
    return path


@pytest.fixture
def command_line(
    program_files: tuple[Path, Path], fake_server: FakeServer, free_port: int, token_file: Path
) -> CommandLine:
    """Good options."""
    p4info_path, config_path = program_files
    return CommandLine(
        {
            "switch": fake_server.address,
            "p4info": p4info_path,
            "device-config": config_path,
            "listen": f"127.0.0.1:{free_port}",
            "ports": "1,2,255",
            "aggregator-ip": "10.0.0.253",
            "host": "10.0.0.1=1",
            "host-address": ["127.0.0.1=10.0.0.1", "127.0.0.1=10.0.0.2"],  # the tests register for these
            "switch-timeout-s": 1,
            "token-file": token_file,
        }
    )


@pytest.fixture
def launch(command_line: CommandLine) -> Iterator[Launcher]:
    launcher = Launcher(command_line)
    yield launcher
    launcher.close()


@pytest.fixture(scope="session")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Authorities:
    return Authorities(tmp_path_factory.mktemp("authorities"))
