# SPDX-License-Identifier: Apache-2.0
"""Entries of a runtime JSON as P4Runtime updates, and errors that name file and entry."""

import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from p4.v1 import p4runtime_pb2

from inagg_switch.switch import Switch
from inagg_testbed.errors import ConfigurationError
from inagg_testbed.network.exercise.documents import Runtime
from inagg_testbed.network.exercise.entries import updates
from tests.testbed.network.exercise.folders import ROUTES, route, runtime, runtimes

FILE = Path("s1-runtime.json")
GUARD = {"table": "I.guard", "action_name": "I.drop", "priority": 1}


@pytest.fixture(scope="module")
def p4info(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("p4") / "p4info.txtpb"
    path.write_text(text_format.MessageToString(Switch.from_p4(ROUTES).p4info))
    return path


def made(p4info: Path, document: dict[str, Any]) -> list[Any]:
    return [update for _, update in updates(p4info, FILE, Runtime.model_validate(document))]


def match(p4info: Path, field: str, value: Any) -> Any:
    (update,) = made(p4info, runtime({**GUARD, "match": {field: value}}))
    return list(update.entity.table_entry.match)


def test_an_entry_has_the_ids_and_the_bytes(p4info: Path) -> None:
    (update,) = made(p4info, runtime(route("10.0.1.0", 24, "08:00:00:00:01:11", 2)))
    assert update.type == p4runtime_pb2.Update.INSERT
    entry = update.entity.table_entry
    assert (entry.match[0].lpm.value, entry.match[0].lpm.prefix_len) == (bytes([10, 0, 1, 0]), 24)
    assert [param.value for param in entry.action.action.params] == [bytes.fromhex("080000000111"), b"\0\2"]


def test_a_default_action_modifies(p4info: Path) -> None:
    entry = {"table": "routes", "default_action": True, "action_name": "drop", "action_params": {}}
    (update,) = made(p4info, runtime(entry))
    assert update.type == p4runtime_pb2.Update.MODIFY
    assert update.entity.table_entry.is_default_action


def test_each_kind_of_key_has_its_form_and_any_value_is_left_out(p4info: Path) -> None:
    (ternary,) = match(p4info, "h.ipv4.src", ["10.0.0.0", 0xFF000000])
    assert (ternary.ternary.value, ternary.ternary.mask) == (b"\x0a\0\0\0", b"\xff\0\0\0")
    (range_,) = match(p4info, "h.ipv4.protocol", [6, 17])
    assert (range_.range.low, range_.range.high) == (b"\6", b"\x11")
    (optional,) = match(p4info, "h.ethernet.type", 0x800)
    assert optional.optional.value == b"\x08\0"
    assert match(p4info, "h.ipv4.src", [0, 0]) == match(p4info, "h.ipv4.protocol", [0, 255]) == []
    (everywhere,) = made(p4info, runtime(route("0.0.0.0", 0, "08:00:00:00:01:11", 2)))
    assert not everywhere.entity.table_entry.match


def test_a_negative_number_is_its_twos_complement(p4info: Path) -> None:
    (range_,) = match(p4info, "h.ipv4.protocol", [1, -1])
    assert range_.range.high == b"\xff"


def test_groups_and_clone_sessions_have_their_replicas(p4info: Path) -> None:
    *_, group, session = made(p4info, runtimes()["s2"])
    engine = group.entity.packet_replication_engine_entry.multicast_group_entry
    assert engine.multicast_group_id == 7
    assert [(each.egress_port, each.instance) for each in engine.replicas] == [(1, 1), (2, 2)]
    cut = session.entity.packet_replication_engine_entry.clone_session_entry
    assert (cut.session_id, cut.packet_length_bytes, len(cut.replicas)) == (5, 64, 2)


ROUTE = route("10.0.1.1", 32, "08:00:00:00:01:11", 1)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (ROUTE | {"table": "I.rutes"}, "the program has no table `I.rutes`; did you mean `I.routes`?"),
        (ROUTE | {"action_name": "I.flood"}, "table I.routes has no action `I.flood`"),
        (ROUTE | {"match": {"h.ipv4.dest": ["10.0.1.1", 32]}}, "no key h.ipv4.dest; there are: h.ipv4.dst"),
        (ROUTE | {"match": {"h.ipv4.dst": "10.0.1.1"}}, "key h.ipv4.dst of table I.routes takes two values, not 1"),
        (ROUTE | {"match": {"h.ipv4.dst": ["10.0.1.1", 33]}}, "the length of the prefix is 33, not 0 to 32"),
        (ROUTE | {"match": {"h.ipv4.dst": ["::1", 32]}}, "::1 has 128 bits, not 32"),
        (ROUTE | {"match": {"h.ipv4.dst": ["ten", 32]}}, "'ten' is neither a number nor a MAC, IPv4 or IPv6 address"),
        (ROUTE | {"action_params": {"mac": "08:00:00:00:01:11"}}, "action I.forward needs a value for port"),
        (ROUTE | {"action_params": {"mac": 1, "port": 512}}, "parameter port of I.forward: 512 does not fit bit<9>"),
        (ROUTE | {"action_params": {"mac": 1, "port": 1, "x": 1}}, "no parameter x; there are: mac, port"),
        (GUARD | {"match": {"h.ethernet.type": [1, 2]}}, "key h.ethernet.type of table I.guard takes one value, not 2"),
    ],
)  # fmt: skip
def test_what_the_program_lacks_is_named_with_file_and_entry(
    p4info: Path, entry: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"{FILE}: table_entries.1: ") + ".*") as caught:
        made(p4info, runtime(ROUTE, entry))
    assert message in str(caught.value)


def test_all_faults_of_all_entries_are_named(p4info: Path) -> None:
    wrong = ROUTE | {"match": {"h.ipv4.dest": 1}, "action_params": {"mac": "ten", "prot": 1}}
    with pytest.raises(ConfigurationError) as caught:
        made(p4info, runtime(wrong, ROUTE | {"table": "I.rutes"}))
    lines = str(caught.value).splitlines()
    assert [line.removeprefix(f"{FILE}: table_entries.").partition(";")[0] for line in lines] == [
        "0: table I.routes has no key h.ipv4.dest",
        "0: action I.forward needs a value for port",
        "0: parameter mac of I.forward: 'ten' is neither a number nor a MAC, IPv4 or IPv6 address",
        "0: action I.forward has no parameter prot",
        "1: the program has no table `I.rutes`",
    ]
    with pytest.raises(ConfigurationError, match=r"\nand 4 more$"):
        made(p4info, runtime(*[wrong] * 2, *[ROUTE | {"table": "I.rutes"}]))
