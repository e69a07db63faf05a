# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime server over real gRPC: pipeline configs, permission to write, streams, addresses."""

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.p4runtime.arbitration import Arbitration, Session
from inagg_switch.p4runtime.controllers import MAX_STREAMS
from inagg_switch.p4runtime.device_config import as_json, source_of
from inagg_switch.p4runtime.errors import Code, RequestError
from inagg_switch.p4runtime.server import ServerError, SwitchServer
from inagg_switch.ports import Ports
from inagg_switch.switch import Switch
from tests.switch.p4runtime.client import (
    Connect,
    Controller,
    GetRequest,
    SetRequest,
    all_entries,
    arp_entry,
    code_of,
    delete,
    group,
    insert,
)
from tests.switch.snippets import v1program

# Capabilities and state before a config


def test_capabilities_name_the_api_version(primary: Controller) -> None:
    reply = primary.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest())
    assert reply.p4runtime_api_version == "1.4.1"


def test_without_a_config_nothing_can_be_written_or_read(primary: Controller) -> None:
    assert code_of(primary.config) == grpc.StatusCode.FAILED_PRECONDITION
    assert code_of(primary.write, insert(group(1, (1, 0)))) == grpc.StatusCode.FAILED_PRECONDITION
    assert code_of(primary.read, all_entries()) == grpc.StatusCode.FAILED_PRECONDITION


def test_a_missing_program_and_a_taken_election_id_have_the_messages_that_clients_of_bmv2_look_for(
    address: str, primary: Controller, connect: Connect
) -> None:
    with pytest.raises(grpc.RpcError, match="No forwarding pipeline config set for this device"):
        primary.config()
    rival = connect(address)
    rival.arbitrate()
    refusal = rival.next()
    assert isinstance(refusal, grpc.RpcError)
    assert refusal.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.details().startswith("Election id already exists")


def test_another_device_is_not_found(configured: Controller) -> None:
    stub = configured.stub
    assert code_of(configured.write, device_id=2) == grpc.StatusCode.NOT_FOUND
    assert code_of(configured.configure, None, device_id=2) == grpc.StatusCode.NOT_FOUND
    read = p4runtime_pb2.ReadRequest(device_id=2)
    assert code_of(list, stub.Read(read)) == grpc.StatusCode.NOT_FOUND
    assert code_of(stub.GetForwardingPipelineConfig, GetRequest(device_id=2)) == grpc.StatusCode.NOT_FOUND


# Pipeline configs


def test_a_config_is_read_back_by_parts(primary: Controller, inagg: Switch) -> None:
    primary.configure(inagg, cookie=77)
    everything = primary.config().config
    assert everything.p4info == inagg.p4info
    assert everything.p4_device_config == inagg.source.encode()
    assert everything.cookie.cookie == 77
    parts = {
        GetRequest.COOKIE_ONLY: {"cookie"},
        GetRequest.P4INFO_AND_COOKIE: {"p4info", "cookie"},
        GetRequest.DEVICE_CONFIG_AND_COOKIE: {"p4_device_config", "cookie"},
    }
    for response_type, expected in parts.items():
        config = primary.config(response_type).config
        assert {descriptor.name for descriptor, _ in config.ListFields()} == expected


def test_a_p4info_of_another_program_is_refused_and_changes_nothing(
    configured: Controller, inagg: Switch
) -> None:
    configured.write(insert(arp_entry(inagg, 1)))
    request = SetRequest(device_id=1, action=SetRequest.VERIFY_AND_COMMIT)
    request.election_id.low = 1
    request.config.p4info.CopyFrom(inagg.p4info)
    del request.config.p4info.tables[0]
    request.config.p4_device_config = inagg.source.encode()
    assert code_of(configured.stub.SetForwardingPipelineConfig, request) == grpc.StatusCode.INVALID_ARGUMENT
    assert len(configured.read(all_entries())) == 1


def test_documentation_in_a_p4info_does_not_matter(primary: Controller, inagg: Switch) -> None:
    request = SetRequest(device_id=1, action=SetRequest.VERIFY_AND_COMMIT)
    request.election_id.low = 1
    request.config.p4info.CopyFrom(inagg.p4info)
    request.config.p4info.tables[0].preamble.doc.brief = "a table"
    request.config.p4info.tables[0].preamble.annotations.append("@mine")
    request.config.p4_device_config = inagg.source.encode()
    primary.stub.SetForwardingPipelineConfig(request)
    assert primary.config().config.p4info == request.config.p4info


def clear_newer_fields(p4info: p4info_pb2.P4Info) -> None:
    for table in p4info.tables:
        table.ClearField("initial_default_action")


def test_a_p4info_of_an_older_compiler_is_accepted(primary: Controller, inagg: Switch) -> None:
    assert any(table.HasField("initial_default_action") for table in inagg.p4info.tables)
    request = SetRequest(device_id=1, action=SetRequest.VERIFY_AND_COMMIT)
    request.election_id.low = 1
    request.config.p4info.CopyFrom(inagg.p4info)
    clear_newer_fields(request.config.p4info)
    request.config.p4_device_config = inagg.source.encode()
    primary.stub.SetForwardingPipelineConfig(request)
    assert primary.config().config.p4info == request.config.p4info


def change_width(p4info: p4info_pb2.P4Info) -> None:
    p4info.tables[0].match_fields[0].bitwidth = 77


def change_name(p4info: p4info_pb2.P4Info) -> None:
    p4info.actions[0].preamble.name = "other"


def change_match_type(p4info: p4info_pb2.P4Info) -> None:
    p4info.tables[0].match_fields[0].match_type = p4info_pb2.MatchField.LPM


def drop_table(p4info: p4info_pb2.P4Info) -> None:
    del p4info.tables[0]


def drop_action(p4info: p4info_pb2.P4Info) -> None:
    del p4info.tables[0].action_refs[0]


def add_counter(p4info: p4info_pb2.P4Info) -> None:
    p4info.counters.add().preamble.name = "mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_width, r"table .* \(0x.*\): match_fields\[0\]\.bitwidth is 77, in the program \d+$"),
        (change_name, r"action .*: preamble\.name is other, in the program "),
        (change_match_type, r"table .*: match_fields\[0\]\.match_type is LPM, in the program EXACT$"),
        (drop_table, r"it lacks table .* of the program$"),
        (drop_action, r"table .*: action_refs is a list of \d, in the program a list of \d$"),
        (add_counter, r"the program has no counter mine \(0x00000000\)$"),
        (p4info_pb2.P4Info.Clear, r"it lacks \w+ .* of the program$"),
    ],
)
def test_how_a_p4info_differs_is_said(
    primary: Controller, inagg: Switch, change: Callable[[p4info_pb2.P4Info], None], message: str
) -> None:
    request = SetRequest(device_id=1, action=SetRequest.VERIFY)
    request.election_id.low = 1
    request.config.p4info.CopyFrom(inagg.p4info)
    change(request.config.p4info)
    request.config.p4_device_config = inagg.source.encode()
    with pytest.raises(grpc.RpcError) as caught:
        primary.stub.SetForwardingPipelineConfig(request)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert re.search(f"^the P4Info does not belong to the device config: {message}", caught.value.details())


def device_config_message(source: bytes) -> bytes:
    """p4.tmp.P4DeviceConfig with reassign and device_data."""
    size = len(source)
    varint = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    return b"\x08\x01\x1a" + varint + source


@pytest.mark.parametrize("form", ["P4DeviceConfig", "JSON"])
def test_a_device_config_may_be_wrapped(primary: Controller, inagg: Switch, form: str) -> None:
    source = inagg.source.encode()
    assert 1 << 14 < len(source) < 1 << 21
    wrapped = as_json(inagg.source).encode() if form == "JSON" else device_config_message(source)
    request = SetRequest(device_id=1, action=SetRequest.VERIFY_AND_COMMIT)
    request.election_id.low = 1
    request.config.p4info.CopyFrom(inagg.p4info)
    request.config.p4_device_config = wrapped
    primary.stub.SetForwardingPipelineConfig(request)
    assert primary.config().config.p4_device_config == wrapped
    primary.write(insert(arp_entry(inagg, 1)))


@given(st.binary(max_size=30))
def test_no_bytes_of_a_device_config_end_in_another_error(config: bytes) -> None:
    with suppress(RequestError):
        source_of(config)


@pytest.mark.parametrize(
    "source", [b"", b"\xff\xfe", b"this is not P4", b'{"program": 7}', b"{", b"[" * 9999]
)
def test_a_device_config_that_is_not_a_program_is_refused_and_changes_nothing(
    configured: Controller, inagg: Switch, source: bytes
) -> None:
    request = SetRequest(device_id=1, action=SetRequest.VERIFY_AND_COMMIT)
    request.election_id.low = 1
    request.config.p4info.CopyFrom(inagg.p4info)
    request.config.p4_device_config = source
    assert code_of(configured.stub.SetForwardingPipelineConfig, request) == grpc.StatusCode.INVALID_ARGUMENT
    assert configured.config().config.p4_device_config == inagg.source.encode()


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_long_error_reaches_the_client(configured: Controller, inagg: Switch, letter: str) -> None:
    request = SetRequest(device_id=1, action=SetRequest.VERIFY)
    request.election_id.low = 1
    request.config.p4info.CopyFrom(inagg.p4info)
    request.config.p4_device_config = f'typedef bit<8> {100_000 * "x"};\n"{100_000 * letter}"'.encode()
    with pytest.raises(grpc.RpcError) as caught:
        configured.stub.SetForwardingPipelineConfig(request)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().endswith(" ... (cut off)")


def test_verify_checks_and_changes_nothing(primary: Controller, inagg: Switch) -> None:
    primary.configure(inagg, SetRequest.VERIFY)
    assert code_of(primary.config) == grpc.StatusCode.FAILED_PRECONDITION


def test_commit_starts_with_fresh_state(configured: Controller, inagg: Switch) -> None:
    configured.write(insert(arp_entry(inagg, 1)), insert(group(1, (1, 0))))
    configured.configure(inagg)
    assert configured.read(all_entries(), group(0)) == []


def test_a_saved_config_takes_the_writes_and_commit_runs_it(
    configured: Controller, inagg: Switch, small: Switch
) -> None:
    configured.write(insert(arp_entry(inagg, 1)))
    configured.configure(small, SetRequest.VERIFY_AND_SAVE)
    assert configured.config().config.p4_device_config == small.source.encode()
    # The only entries are those that the new program declares.
    assert all(found.table_entry.is_const for found in configured.read(all_entries()))
    configured.write(insert(group(7, (1, 0))))
    configured.configure(None, SetRequest.COMMIT)
    assert configured.config().config.p4_device_config == small.source.encode()
    assert configured.read(group(0)) == [group(7, (1, 0))]


def test_commit_needs_a_saved_config_and_refuses_a_new_one(configured: Controller, inagg: Switch) -> None:
    assert code_of(configured.configure, None, SetRequest.COMMIT) == grpc.StatusCode.NOT_FOUND
    assert code_of(configured.configure, inagg, SetRequest.COMMIT) == grpc.StatusCode.INVALID_ARGUMENT


def test_reconcile_keeps_entries_and_groups(configured: Controller, inagg: Switch) -> None:
    entry, flood = arp_entry(inagg, 1), group(1, (1, 0), (2, 0))
    entry.table_entry.metadata = b"mine"
    configured.write(insert(entry), insert(flood))
    configured.configure(inagg, SetRequest.RECONCILE_AND_COMMIT, cookie=5)
    assert configured.read(all_entries(), group(0)) == [entry, flood]
    assert configured.config(GetRequest.COOKIE_ONLY).config.cookie.cookie == 5


def test_reconcile_keeps_deletions_of_the_programs_entries(primary: Controller) -> None:
    entries = "const priority = 3: 1: NoAction(); priority = 2: 2: NoAction(); priority = 1: 3: NoAction();"
    table = f"table t {{ key = {{ meta.x: ternary; }} actions = {{ NoAction; }} entries = {{ {entries} }} }}"
    source = v1program("t.apply();", locals=table)
    with Switch.from_source(preprocess_text(source).text) as program:
        primary.configure(program)
        declared = primary.read(all_entries())
        assert [entity.table_entry.is_const for entity in declared] == [True, False, False]
        primary.write(delete(declared[1]))
        primary.configure(program, SetRequest.RECONCILE_AND_COMMIT)
        assert primary.read(all_entries()) == [declared[0], declared[2]]
        primary.configure(program)
        assert primary.read(all_entries()) == declared


def test_reconcile_with_another_pipeline_is_refused(
    configured: Controller, inagg: Switch, small: Switch
) -> None:
    configured.write(insert(arp_entry(inagg, 1)))
    assert (
        code_of(configured.configure, small, SetRequest.RECONCILE_AND_COMMIT)
        == grpc.StatusCode.INVALID_ARGUMENT
    )
    assert len(configured.read(all_entries())) == 1


@pytest.mark.parametrize("action", [SetRequest.UNSPECIFIED, SetRequest.VERIFY, SetRequest.VERIFY_AND_SAVE])
def test_an_action_without_a_config_or_a_config_without_an_action_is_refused(
    primary: Controller, action: int
) -> None:
    assert code_of(primary.configure, None, action) == grpc.StatusCode.INVALID_ARGUMENT


def test_only_the_primary_sets_a_config(
    address: str, primary: Controller, connect: Connect, inagg: Switch
) -> None:
    backup = connect(address, 0)
    backup.arbitrate()
    backup.next()
    assert code_of(backup.configure, inagg) == grpc.StatusCode.PERMISSION_DENIED


# Streams and arbitration


class ArbitrationFields(TypedDict, total=False):
    """Arguments of Controller.arbitrate."""

    device_id: int
    role: str
    config: bool


def test_a_higher_election_id_takes_over_and_the_old_primary_is_refused(
    address: str, configured: Controller, connect: Connect, inagg: Switch
) -> None:
    second = connect(address, 5)
    second.arbitrate()
    assert second.next().arbitration.status.code == Code.OK
    notice = configured.next().arbitration
    assert (notice.status.code, notice.election_id.low) == (Code.ALREADY_EXISTS, 5)
    assert code_of(configured.write, insert(arp_entry(inagg, 1))) == grpc.StatusCode.PERMISSION_DENIED
    assert second.read(all_entries()) == []
    second.write(insert(arp_entry(inagg, 1)))
    # Reading needs no session and no primary.
    assert configured.read(all_entries()) == [arp_entry(inagg, 1)]


def test_the_primarys_disconnection_is_announced_and_its_writes_are_refused(
    address: str, configured: Controller, connect: Connect
) -> None:
    backup = connect(address, 0)
    backup.arbitrate()
    assert backup.next().arbitration.status.code == Code.ALREADY_EXISTS
    configured.close()
    assert backup.next().arbitration.status.code == Code.NOT_FOUND
    assert code_of(backup.write, insert(group(1, (1, 0)))) == grpc.StatusCode.PERMISSION_DENIED


def test_state_survives_a_controllers_reconnection(
    address: str, configured: Controller, connect: Connect, inagg: Switch
) -> None:
    configured.write(insert(arp_entry(inagg, 1)))
    configured.close()
    again = connect(address)
    again.arbitrate()
    assert again.next().arbitration.status.code == Code.OK
    assert again.read(all_entries()) == [arp_entry(inagg, 1)]
    again.write(delete(arp_entry(inagg, 1)))


@pytest.mark.parametrize(
    ("first", "then", "code"),
    [
        ({"device_id": 2}, None, grpc.StatusCode.NOT_FOUND),
        ({"config": True}, None, grpc.StatusCode.INVALID_ARGUMENT),
        ({}, {"device_id": 2}, grpc.StatusCode.FAILED_PRECONDITION),
        ({}, {"role": "other"}, grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
def test_bad_arbitration_ends_the_stream(
    address: str,
    connect: Connect,
    first: ArbitrationFields,
    then: ArbitrationFields | None,
    code: grpc.StatusCode,
) -> None:
    controller = connect(address, 3)
    controller.arbitrate(**first)
    if then is not None:
        assert controller.next().arbitration.status.code == Code.OK
        controller.arbitrate(**then)
    assert controller.next().code() == code


def test_a_client_may_end_its_stream_and_connect_again_at_once(
    address: str, primary: Controller, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As p4runtime_lib of p4lang/tutorials does between two tests. The end comes late here."""
    monkeypatch.setattr("inagg_switch.p4runtime.controllers._ENDING_S", 20)
    is_taken, waits = Arbitration.is_taken, threading.Event()

    def note(
        arbitration: Arbitration, session: Session, message: p4runtime_pb2.MasterArbitrationUpdate
    ) -> bool:
        if taken := is_taken(arbitration, session, message):
            waits.set()
        return taken

    monkeypatch.setattr(Arbitration, "is_taken", note)
    again = connect(address)
    again.arbitrate()
    assert waits.wait(10)
    primary.close()
    assert again.next().arbitration.status.code == Code.OK


def test_an_election_id_in_use_ends_the_new_stream_only(
    address: str, configured: Controller, connect: Connect
) -> None:
    twin = connect(address, 1)
    twin.arbitrate()
    assert twin.next().code() == grpc.StatusCode.INVALID_ARGUMENT
    configured.write(insert(group(1, (1, 0))))


def test_a_packet_out_to_a_switch_without_a_cpu_port_is_refused(configured: Controller) -> None:
    message = p4runtime_pb2.StreamMessageRequest()
    message.packet.payload = b"x"
    configured.send(message)
    error = configured.next().error
    assert error.canonical_code == Code.FAILED_PRECONDITION
    assert error.packet_out.packet_out == message.packet
    assert "--cpu-port" in error.message


def test_without_a_session_nobody_writes(address: str, connect: Connect, inagg: Switch) -> None:
    stranger = connect(address, 1)
    assert code_of(stranger.write) == grpc.StatusCode.PERMISSION_DENIED
    assert code_of(stranger.configure, inagg) == grpc.StatusCode.PERMISSION_DENIED


def test_a_stream_beyond_the_limit_is_refused(address: str, connect: Connect) -> None:
    for _ in range(MAX_STREAMS):
        quiet = connect(address)
        quiet.send(p4runtime_pb2.StreamMessageRequest())
        assert quiet.next().error.canonical_code == Code.UNIMPLEMENTED
    late = connect(address)
    assert late.next().code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert late.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest()).p4runtime_api_version


def test_stopping_the_server_ends_the_streams(tmp_path: Path, connect: Connect) -> None:
    address = f"unix:{tmp_path}/s.sock"
    server = SwitchServer(Ports([]), device_id=1, address=address)
    server.start()
    controller = connect(address)
    controller.arbitrate()
    assert controller.next().arbitration.status.code == Code.OK
    server.stop()
    assert controller.next().code() == grpc.StatusCode.UNAVAILABLE
    assert not (tmp_path / "s.sock").exists()


def test_an_address_in_use_is_an_error(tmp_path: Path) -> None:
    first = SwitchServer(Ports([]), device_id=1, address="127.0.0.1:0")
    first.start()
    with pytest.raises(ServerError, match="in use"):
        SwitchServer(Ports([]), device_id=1, address=f"127.0.0.1:{first.port}")
    first.stop()
    path = f"unix:{tmp_path}/s.sock"
    first = SwitchServer(Ports([]), device_id=1, address=path)
    first.start()
    with pytest.raises(ServerError, match="another server listens there"):
        SwitchServer(Ports([]), device_id=1, address=path)
    first.stop()


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x", ":9559", "::1", "x"]
)
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ServerError, match=r"expected HOST:PORT, \[IPV6\]:PORT or unix:PATH"):
        SwitchServer(Ports([]), device_id=1, address=address)


def test_a_socket_in_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="cannot serve at unix:"):
        SwitchServer(Ports([]), device_id=1, address=f"unix:{tmp_path}/nowhere/s.sock")
