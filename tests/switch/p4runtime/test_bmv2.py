# SPDX-License-Identifier: Apache-2.0
"""Requests that this server and BMv2's simple_switch_grpc answer alike. They go to both, where BMv2 is installed.

docs/switch.md lists the requests that the two answer differently.
"""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import text_format
from p4.v1 import p4runtime_pb2

from inagg_switch import Switch
from inagg_switch.p4runtime.errors import Code
from inagg_switch.p4runtime.server import SwitchServer
from inagg_switch.ports import PortOptions, Ports
from tests.bmv2_commands import bmv2_command
from tests.free_ports import free_port
from tests.switch import bmv2
from tests.switch.p4runtime.client import SMALL_P4, Connect, Controller, SetRequest, Update, batch_codes

NAMES = ("forward", "ordered", "fixed", "send", "send_to", "send_named", "drop", "mark", "skip", "seen",
         "first", "second", "go", "first_ways")  # fmt: skip
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
        found = [o for kind in (info.tables, info.actions, info.counters, info.action_profiles) for o in kind]
        for identity in (o.preamble.id for o in found if o.preamble.name.split(".")[-1] == name):
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


# --- selectors and digests: packets from the controller come back by the CPU port

CPU_PORT = 510
WAYS_P4 = Path(__file__).parent / "ways.p4"


def member(profile: str, number: int) -> str:
    return f'action_profile_member {{ action_profile_id: {profile} member_id: {number} \
action {{ action_id: $go params {{ param_id: 1 value: "\\x{number:02x}" }} }} }}'


def members(profile: str, number: int, *weights: tuple[int, int]) -> str:
    parts = " ".join(f"members {{ member_id: {one} weight: {weight} }}" for one, weight in weights)
    return f"action_profile_group {{ action_profile_id: {profile} group_id: {number} max_size: 8 {parts} }}"


def first(key: int, refers: str) -> str:
    return f'table_entry {{ table_id: $first match {{ field_id: 1 exact {{ value: "\\x{key:02x}" }} }} \
action {{ {refers} }} }}'


def second(length: int, *weights: tuple[int, int]) -> str:
    actions = " ".join(
        f'action_profile_actions {{ action {{ action_id: $go params {{ param_id: 1 value: "\\x{way:02x}" }} }} \
weight: {weight} }}'
        for way, weight in weights
    )
    return (
        f'table_entry {{ table_id: $second match {{ field_id: 1 lpm {{ value: "\\x40" prefix_len: {length} }} }} \
action {{ action_profile_action_set {{ {actions} }} }} }}'
    )


WAYS = "$first_ways"
STEPS = [
    [
        *((INSERT, member(WAYS, number)) for number in (30, 10, 20, 40)),
        (INSERT, members(WAYS, 1, (30, 1), (10, 2), (20, 1))),
        (INSERT, members(WAYS, 2, (40, 1), (10, 1), (30, 3))),
        (INSERT, first(1, "action_profile_group_id: 1")),
        (INSERT, first(2, "action_profile_group_id: 2")),
        (INSERT, first(3, "action_profile_member_id: 20")),
        (INSERT, second(2, (5, 1), (6, 2), (7, 1))),
        (INSERT, second(8, (8, 1), (9, 1))),
    ],
    [
        (MODIFY, members(WAYS, 1, (40, 1), (20, 2))),
        (MODIFY, members(WAYS, 2, (40, 1))),
        (DELETE, member(WAYS, 30)),
        (INSERT, member(WAYS, 50)),
        (INSERT, member(WAYS, 60)),
        (MODIFY, members(WAYS, 2, (60, 1), (40, 2), (50, 1), (10, 1))),
        (MODIFY, first(3, "action_profile_group_id: 2")),
        (MODIFY, second(2, (5, 2), (11, 1), (12, 1))),
    ],
]
# After each step, by key: the way that each of twelve flows takes.
CHOSEN = [
    {
        1: [30, 10, 20, 30, 30, 20, 10, 10, 30, 10, 10, 30],
        2: [30, 10, 40, 40, 30, 10, 40, 30, 30, 30, 30, 30],
        3: [20] * 12,
        0x40: [9, 9, 9, 9, 8, 8, 8, 8, 9, 9, 9, 9],
        0x41: [7, 6, 7, 6, 6, 5, 6, 5, 6, 7, 6, 7],
    },
    {
        1: [20, 40, 20, 20, 20, 20, 20, 20, 40, 20, 20, 40],
        2: [50, 10, 40, 40, 40, 10, 40, 40, 60, 50, 50, 60],
        3: [50, 10, 40, 40, 40, 10, 40, 40, 60, 50, 50, 60],
        0x40: [9, 9, 9, 9, 8, 8, 8, 8, 9, 9, 9, 9],
        0x41: [12, 5, 12, 5, 11, 5, 11, 5, 5, 12, 5, 12],
    },
]
DIGESTS = [
    [b"\x05\xb0\x5b\x03", b"\x01\xfe", b"\x05"],
    [b"\x07\xf6\xe5\xd1", b"\x01\xfe", b"\x07"],
    [b"\x00", b"\x01\xfe", b"\x00"],
]


@pytest.fixture(scope="module")
def ways() -> Switch:
    return Switch.from_p4(WAYS_P4)


def flow(key: int, number: int) -> bytes:
    return (
        bytes([key])
        + (number * 0x01234567 & 0xFFFFFFFF).to_bytes(4, "big")
        + number.to_bytes(2, "big")
        + b"\0"
    )


def packet_out(key: int, number: int) -> p4runtime_pb2.StreamMessageRequest:
    return p4runtime_pb2.StreamMessageRequest(packet=p4runtime_pb2.PacketOut(payload=flow(key, number)))


def check_ways(program: Switch, controller: Controller) -> None:
    for step, expected in zip(STEPS, CHOSEN, strict=True):
        for kind, text in step:
            controller.write(Update(type=kind, entity=entity(program, text)))
        chosen: dict[int, list[int]] = {}
        for key in expected:
            chosen[key] = []
            for number in range(12):
                controller.send(packet_out(key, number))
                chosen[key].append(controller.next().packet.payload[-1])
        assert chosen == expected


def check_digests(program: Switch, controller: Controller) -> None:
    enabled = p4runtime_pb2.Entity()
    enabled.digest_entry.digest_id = program.p4info.digests[0].preamble.id
    enabled.digest_entry.config.max_list_size = 3
    enabled.digest_entry.config.max_timeout_ns = 5_000_000_000
    enabled.digest_entry.config.ack_timeout_ns = 60_000_000_000  # without it PI sends lists by time only
    controller.write(Update(type=INSERT, entity=enabled))
    for number in (5, 7, 5, 0):
        controller.send(packet_out(9, number))
    received = [controller.next() for _ in range(5)]
    (digest,) = (m.digest for m in received if m.HasField("digest"))
    assert digest.digest_id == enabled.digest_entry.digest_id
    assert [[part.bitstring for part in one.struct.members] for one in digest.data] == DIGESTS


def test_ways_on_the_model(ways: Switch, tmp_path: Path, connect: Connect) -> None:
    address = f"unix:{tmp_path}/switch.sock"
    server = SwitchServer(Ports([], PortOptions(cpu_port=CPU_PORT)), device_id=1, address=address)
    server.start()
    try:
        controller = connect(address)
        controller.arbitrate()
        assert controller.next().arbitration.status.code == Code.OK
        controller.configure(ways)
        check_ways(ways, controller)
        check_digests(ways, controller)
    finally:
        server.stop()


@pytest.fixture
def simple_switch_grpc(tmp_path: Path) -> Iterator[str]:
    """The address of a simple_switch_grpc without a program."""
    address = f"127.0.0.1:{free_port()}"
    command = ["simple_switch_grpc", "--no-p4", "--device-id", "1", "--", "--grpc-server-addr", address,
               "--cpu-port", str(CPU_PORT)]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield address
        finally:
            process.kill()


def configured_bmv2(
    address: str, program: Switch, source: Path, folder: Path, connect: Connect
) -> Controller:
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
    request.config.p4_device_config = bmv2.compile_p4(source, folder).read_bytes()
    controller.stub.SetForwardingPipelineConfig(request)
    return controller


needs_bmv2 = pytest.mark.skipif(
    not (bmv2_command("p4c-bm2-ss") and bmv2_command("simple_switch_grpc")),
    reason="p4c or simple_switch_grpc is missing",
)


@pytest.mark.bmv2
@needs_bmv2
def test_on_bmv2(program: Switch, simple_switch_grpc: str, tmp_path: Path, connect: Connect) -> None:
    check_answers(program, configured_bmv2(simple_switch_grpc, program, SMALL_P4, tmp_path, connect))


@pytest.mark.bmv2
@needs_bmv2
def test_ways_on_bmv2(ways: Switch, simple_switch_grpc: str, tmp_path: Path, connect: Connect) -> None:
    controller = configured_bmv2(simple_switch_grpc, ways, WAYS_P4, tmp_path, connect)
    check_ways(ways, controller)
    check_digests(ways, controller)
