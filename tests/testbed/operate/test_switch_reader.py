# SPDX-License-Identifier: Apache-2.0
"""Messages about a P4Runtime server that does not implement a read."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from inagg_testbed.errors import SwitchUnreadableError
from inagg_testbed.operate.switch_reader import SwitchReader

BMV2 = "BMv2's server does not read registers"


class NoReads(p4runtime_pb2_grpc.P4RuntimeServicer):  # type: ignore[misc]
    """Knows its program, with one register and one counter, and answers each Read with UNIMPLEMENTED."""

    def GetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802 (gRPC's name)
        answer = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        info = p4info_pb2.P4Info()
        info.registers.add().preamble.name = "seen"
        info.registers[0].type_spec.bitstring.bit.bitwidth = 32
        info.registers[0].size = 4
        info.counters.add().preamble.name = "passed"
        answer.config.p4info.CopyFrom(info)
        return answer


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    servers = []

    def start(servicer: p4runtime_pb2_grpc.P4RuntimeServicer) -> str:
        server = grpc.server(ThreadPoolExecutor(1))
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(servicer, server)
        address = f"unix:{tmp_path}/p4runtime"
        server.add_insecure_port(address)
        server.start()
        servers.append(server)
        return address

    yield start
    for server in servers:
        server.stop(None).wait()


def test_only_registers_are_said_to_be_missing_in_bmv2(serve: Any) -> None:
    reader = SwitchReader("s1", serve(NoReads()), 1)
    with pytest.raises(SwitchUnreadableError, match=f"register seen cannot be read: UNIMPLEMENTED: .*{BMV2}"):
        reader.read(reader.find("seen"))
    with pytest.raises(
        SwitchUnreadableError, match="the counters cannot be read: UNIMPLEMENTED"
    ) as of_counters:
        reader.counters()
    assert BMV2 not in str(of_counters.value)
    reader.close()


def test_a_server_without_its_program_is_not_taken_for_bmv2(serve: Any) -> None:
    with pytest.raises(
        SwitchUnreadableError, match="the program cannot be read: UNIMPLEMENTED"
    ) as of_program:
        SwitchReader("s1", serve(p4runtime_pb2_grpc.P4RuntimeServicer()), 1)
    assert BMV2 not in str(of_program.value)
