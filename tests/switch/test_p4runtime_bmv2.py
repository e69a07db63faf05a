# SPDX-License-Identifier: Apache-2.0
"""Requests that this server and BMv2's simple_switch_grpc answer alike: to the one and, where it is installed, to the
other. Where they do not, docs/switch.md says so."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import bmv2
import pytest
from google.protobuf import text_format
from p4.v1 import p4runtime_pb2
from p4runtime_client import SMALL_P4, Controller, SetRequest, Update, batch_codes

from inagg_switch import Switch
from inagg_switch.p4runtime_errors import Code

NAMES = ("forward", "ordered", "fixed", "send", "send_to", "send_named", "drop", "mark", "skip", "seen")
INSERT, MODIFY, DELETE = Update.INSERT, Update.MODIFY, Update.DELETE
OK, BAD, THERE, MISSING, DENIED = (
    Code.OK,
    Code.INVALID_ARGUMENT,
    Code.ALREADY_EXISTS,
    Code.NOT_FOUND,
    Code.PERMISSION_DENIED,
)


def forward(value: str, action: str = "$drop", more: str = "") -> str:
    return f'table_entry {{ table_id: $forward match {{ field_id: 1 exact {{ value: "{value}" }} }} \
action {{ action {{ action_id: {action} }} }} {more} }}'


def ordered(
    priority: int, match: str = "", action: str = '$mark params { param_id: 1 value: "\\x02" }'
) -> str:
    return f"table_entry {{ table_id: $ordered priority: {priority} {match} \
action {{ action {{ action_id: {action} }} }} }}"


def default(table: str, action: str, more: str = "") -> str:
    return f"table_entry {{ table_id: {table} is_default_action: true {action} {more} }}"


def group(number: int, *ports: int) -> str:
    replicas = " ".join(f"replicas {{ egress_port: {port} instance: 1 }}" for port in ports)
    return f"packet_replication_engine_entry {{ multicast_group_entry {{ multicast_group_id: {number} {replicas} }} }}"


def session(number: int, more: str = "") -> str:
    return f"packet_replication_engine_entry {{ clone_session_entry {{ session_id: {number} \
replicas {{ egress_port: 1 instance: 1 }} {more} }} }}"


def counter(index: int) -> str:
    return f"counter_entry {{ counter_id: $seen index {{ index: {index} }} data {{ packet_count: 4 }} }}"


DROP = "action { action { action_id: $drop } }"
REQUESTS = [
    (INSERT, forward(r"\x01"), OK),
    (INSERT, forward(r"\x01"), THERE),
    (INSERT, forward(r"\x00\x01"), THERE),
    (MODIFY, forward(r"\x00\x00\x00\x00\x00\x00\x00\x01", r'$send params { param_id: 1 value: "\x00\x05" }'), OK),
    (MODIFY, forward(r"\x02"), MISSING),
    (DELETE, forward(r"\x02"), MISSING),
    (INSERT, forward(r"\x01\x00\x00\x00\x00\x00\x03"), BAD),
    (INSERT, forward(r"\x09", "12345"), BAD),
    (INSERT, forward(r"\x09", r'$mark params { param_id: 1 value: "\x05" }'), BAD),
    (INSERT, forward(r"\x09", "$send"), BAD),
    (INSERT, forward(r"\x09", r'$send params { param_id: 1 value: "\x02\x00" }'), BAD),
    (INSERT, forward(r"\x09", r'$send params { param_id: 2 value: "\x02" }'), BAD),
    (INSERT, forward(r"\x09", more="priority: 1"), BAD),
    (INSERT, forward(r"\x09", more="idle_timeout_ns: 5"), BAD),
    (INSERT, forward(r"\x09", more="counter_data { packet_count: 5 }"), BAD),
    (INSERT, forward(r"\x09", more="meter_config { cir: 5 }"), BAD),
    (INSERT, f"table_entry {{ table_id: $forward {DROP} }}", BAD),
    (INSERT, f"table_entry {{ table_id: 12345 {DROP} }}", BAD),
    (Update.UNSPECIFIED, forward(r"\x09"), BAD),
    (INSERT, forward(r"\x0f", r'$send_to params { param_id: 1 value: "\x00\x00\x01\x02" }'), OK),
    (INSERT, forward(r"\x10", r'$send_to params { param_id: 1 value: "\xff\xff\xff\x02" }'), OK),
    (DELETE, forward(r"\x10"), OK),
    (INSERT, forward(r"\x10", r'$send_to params { param_id: 1 value: "\x01\x00\x00\x00\x00" }'), BAD),
    (INSERT, forward(r"\x10", r'$send_named params { param_id: 1 value: "eth1" }'), BAD),
    (INSERT, forward(r"\x0e", more='metadata: "abc" controller_metadata: 7'), OK),
    (MODIFY, default("$forward", r'action { action { action_id: $send params { param_id: 1 value: "\x03" } } }'), OK),
    (INSERT, default("$forward", DROP), BAD),
    (DELETE, default("$forward", ""), BAD),
    (MODIFY, default("$forward", ""), OK),
    (MODIFY, default("$forward", DROP, "priority: 5"), BAD),
    (MODIFY, default("$fixed", DROP), DENIED),
    (INSERT, ordered(10), OK),
    (INSERT, ordered(10), THERE),
    (INSERT, ordered(0), BAD),
    (INSERT, ordered(11, action="$skip"), DENIED),
    (INSERT, ordered(12, r'match { field_id: 1 lpm { value: "\x10" prefix_len: 44 } }'), OK),
    (INSERT, ordered(13, r'match { field_id: 1 lpm { value: "\x00" prefix_len: 0 } }'), BAD),
    (INSERT, ordered(13, r'match { field_id: 1 lpm { value: "\x01" prefix_len: 49 } }'), BAD),
    (INSERT, ordered(13, r'match { field_id: 1 lpm { value: "\x01" prefix_len: 4 } }'), BAD),
    (INSERT, ordered(13, r'match { field_id: 2 ternary { value: "\x00" mask: "\x00" } }'), BAD),
    (INSERT, ordered(13, r'match { field_id: 2 ternary { value: "\x01" mask: "\x02" } }'), BAD),
    (INSERT, ordered(13, r'match { field_id: 3 range { low: "\x05" high: "\x01" } }'), BAD),
    (INSERT, ordered(13, r'match { field_id: 4 exact { value: "\x01" } }'), BAD),
    (MODIFY, counter(3), OK),
    (INSERT, counter(3), BAD),
    (MODIFY, counter(-1), BAD),
    (INSERT, group(1, 1, 2), OK),
    (INSERT, group(1, 3), THERE),
    (INSERT, group(0, 1), BAD),
    (INSERT, group(2), OK),
    (INSERT, group(3, 1, 1), BAD),
    (MODIFY, group(1, 3), OK),
    (MODIFY, group(9, 3), MISSING),
    (DELETE, group(9), MISSING),
    (INSERT, group(70000, 1), Code.OUT_OF_RANGE),
    (INSERT, session(1), OK),
    (INSERT, session(1), THERE),
    (INSERT, session(0), BAD),
    (INSERT, session(2, "class_of_service: 2"), Code.UNIMPLEMENTED),
    (MODIFY, session(9), MISSING),
]  # fmt: skip
READS = ["table_entry { table_id: $forward }", "table_entry { table_id: $forward is_default_action: true }",
         "packet_replication_engine_entry { multicast_group_entry { } }",
         "packet_replication_engine_entry { clone_session_entry { } }"]  # fmt: skip
ENTRIES = [
    forward(r"\x01", r'$send params { param_id: 1 value: "\x05" }'),
    forward(r"\x0e", more='metadata: "abc" controller_metadata: 7'),
    forward(r"\x0f", r'$send_to params { param_id: 1 value: "\x01\x02" }'),
    default("$forward", DROP),
    group(1, 3),
    group(2),
    session(1),
]


@pytest.fixture(scope="module")
def program() -> Switch:
    return Switch.from_p4(SMALL_P4)


def entity(program: Switch, text: str) -> p4runtime_pb2.Entity:
    info = program.p4info
    for name in NAMES:
        found = [o for kind in (info.tables, info.actions, info.counters) for o in kind]
        (identity,) = [o.preamble.id for o in found if o.preamble.name.split(".")[-1] == name]
        text = text.replace(f"${name} ", f"{identity} ")
    return text_format.Parse(text, p4runtime_pb2.Entity())


def check_answers(program: Switch, controller: Controller) -> None:
    updates = [Update(type=kind, entity=entity(program, text)) for kind, text, _ in REQUESTS]
    answers = [code for code, _ in batch_codes(controller.write, *updates)]
    wrong = [
        (f"{text}: {answer}", expected)
        for (_, text, expected), answer in zip(REQUESTS, answers, strict=True)
        if answer != expected
    ]
    assert wrong == []
    found = controller.read(*(entity(program, text) for text in READS))
    expected = [entity(program, text) for text in ENTRIES]
    assert sorted(map(str, found)) == sorted(map(str, expected))


def test_on_the_model(program: Switch, primary: Controller) -> None:
    primary.configure(program)
    check_answers(program, primary)


@pytest.fixture
def simple_switch_grpc(tmp_path: Path) -> Iterator[tuple[str, bytes]]:
    """The address of one without a program, and p4runtime_small.p4 as it takes it."""
    config = bmv2.compile_p4(SMALL_P4, tmp_path).read_bytes()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = ["simple_switch_grpc", "--no-p4", "--device-id", "1", "--", "--grpc-server-addr", address]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield address, config
        finally:
            process.kill()


@pytest.mark.bmv2
@pytest.mark.skipif(
    not (shutil.which("p4c-bm2-ss") and shutil.which("simple_switch_grpc")),
    reason="p4c or simple_switch_grpc is missing",
)
def test_on_bmv2(program: Switch, simple_switch_grpc: tuple[str, bytes], connect) -> None:
    address, config = simple_switch_grpc
    give_up = time.monotonic() + 30
    while True:
        controller = connect(address)
        controller.arbitrate()
        if isinstance(first := controller.next(), p4runtime_pb2.StreamMessageResponse):
            break
        assert time.monotonic() < give_up, first
        time.sleep(0.2)
    request = SetRequest(device_id=1, election_id={"low": 1}, action=SetRequest.VERIFY_AND_COMMIT)
    request.config.p4info.CopyFrom(program.p4info)
    request.config.p4_device_config = config
    controller.stub.SetForwardingPipelineConfig(request)
    check_answers(program, controller)
