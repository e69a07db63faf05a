# SPDX-License-Identifier: Apache-2.0
"""Meters, clone sessions and value sets over P4Runtime, with their effect on packets. All objects in process."""

from collections.abc import Callable

import grpc
import pytest
from p4.v1 import p4runtime_pb2

from inagg_switch import EntryError, Group, Member, MeterConfig, Switch
from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.p4runtime.errors import Code
from tests.switch.p4runtime.client import (
    Controller,
    SetRequest,
    action_id,
    delete,
    id_of,
    insert,
    modify,
    table_id,
)
from tests.switch.p4runtime.objects import (
    Entity,
    flow,
    frame,
    group,
    learn,
    member,
    one_shot,
    out_ports,
    refused,
    route,
    session,
    tag_types,
)
from tests.switch.snippets import v1program

# --- meters


def test_meters_are_configured_and_read(sw: Switch, client: Controller) -> None:
    sw.profile("ways").insert(1, "send", {"port": 1})
    sw.insert("route", {"dst": 5}, Member(1))
    entity = Entity()
    entity.meter_entry.meter_id = id_of(sw.p4info.meters, "port_rate")
    entity.meter_entry.index.index = 3
    config = entity.meter_entry.config
    config.cir, config.cburst, config.pir, config.pburst = 1, 1, 1, 1
    client.write(modify(entity))
    assert [out_ports(sw, 5) for _ in range(3)] == [[1], [], []]  # the burst is one packet
    assert sw.meter("port_rate")[3] == MeterConfig(1, 1, 1, 1)
    assert client.read(entity) == [entity]
    everything = Entity()
    everything.meter_entry.SetInParent()
    found = client.read(everything)
    assert [e.meter_entry.HasField("config") for e in found] == [False, False, False, True]
    entity.meter_entry.ClearField("config")
    client.write(modify(entity))
    assert sw.meter("port_rate")[3] is None
    assert out_ports(sw, 5) == [1]


@pytest.mark.parametrize(("field", "value"), [("cir", -1), ("pburst", -1), ("cir", 5), ("eburst", 1)])
def test_an_invalid_meter_is_refused(sw: Switch, client: Controller, field: str, value: int) -> None:
    entity = Entity()
    entity.meter_entry.meter_id = id_of(sw.p4info.meters, "port_rate")
    setattr(entity.meter_entry.config, field, value)
    assert refused(client, modify(entity), insert(entity)) == [Code.INVALID_ARGUMENT] * 2
    assert sw.meter("port_rate")[0] is None


def test_direct_meters_are_read_with_their_entry_and_without_it(sw: Switch, client: Controller) -> None:
    entity = flow(sw, 9)
    config = entity.table_entry.meter_config
    config.cir, config.cburst, config.pir, config.pburst = 1, 14, 1, 14
    client.write(insert(entity))
    assert [len(sw.process(3, frame(5))) for _ in range(2)] == [1, 0]  # 14 bytes of burst, one frame
    wanted = Entity()
    wanted.table_entry.table_id = entity.table_entry.table_id
    wanted.table_entry.meter_config.SetInParent()
    assert client.read(wanted) == [entity]
    direct = Entity()
    direct.direct_meter_entry.table_entry.table_id = entity.table_entry.table_id
    (found,) = client.read(direct)
    assert found.direct_meter_entry.config == config
    found.direct_meter_entry.ClearField("config")
    client.write(modify(found))
    assert [e.meter for e in sw.entries("flows")] == [None]
    missing = Entity()
    missing.direct_meter_entry.table_entry.CopyFrom(flow(sw, 8).table_entry)
    assert refused(client, modify(missing)) == [Code.NOT_FOUND]


def test_the_meter_of_a_default_entry_cannot_be_configured(sw: Switch, client: Controller) -> None:
    entity = Entity()
    entry = entity.table_entry
    entry.table_id, entry.is_default_action = table_id(sw, "flows"), True
    entry.action.action.action_id = action_id(sw, "admit")
    client.write(modify(entity))
    entry.ClearField("action")
    entry.meter_config.SetInParent()
    assert refused(client, modify(entity)) == [Code.UNIMPLEMENTED]
    assert sw.default_entry("flows").action == "ObjectIngress.admit"


# --- clone sessions and value sets


def test_clones_go_to_the_session_of_packets_that_the_value_set_selects(
    sw: Switch, client: Controller
) -> None:
    tagged = frame(5, ether_type=0x9999, rest=b"tag and more")
    whole, cut = session(5, (4, 0)), session(5, (4, 0), (6, 1), packet_length_bytes=16)
    client.write(insert(whole))
    assert [port for port, _ in sw.process(3, tagged)] == [0]
    client.write(modify(tag_types(sw, 0x9999, 0x8888)))
    assert sorted(sw.process(3, tagged)) == [(0, tagged), (4, tagged)]
    client.write(modify(cut))
    assert sorted(sw.process(3, tagged)) == [(0, tagged), (4, tagged[:16]), (6, tagged[:16])]
    asked = session(0)
    assert client.read(asked, tag_types(sw)) == [cut, tag_types(sw, 0x9999, 0x8888)]
    client.write(delete(cut), modify(tag_types(sw)))
    assert client.read(asked) == []
    assert sw.process(3, tagged) == [(0, tagged)]


def test_refused_sessions_and_value_sets(sw: Switch, client: Controller) -> None:
    client.write(insert(session(5, (4, 0))))
    assert refused(
        client,
        insert(session(5, (6, 0))),
        insert(session(0, (6, 0))),
        insert(session(1 << 15, (6, 0))),
        insert(session(6, (512, 0))),
        insert(session(6, (4, 0), packet_length_bytes=-1)),
        insert(session(6, (4, 0), class_of_service=1)),
        delete(session(6)),
        modify(tag_types(sw, 1, 2, 3)),
        modify(tag_types(sw, 1, 1)),
        insert(tag_types(sw, 1)),
    ) == [
        Code.ALREADY_EXISTS,
        Code.INVALID_ARGUMENT,
        Code.OUT_OF_RANGE,
        Code.INVALID_ARGUMENT,
        Code.INVALID_ARGUMENT,
        Code.UNIMPLEMENTED,
        Code.NOT_FOUND,
        Code.RESOURCE_EXHAUSTED,
        Code.INVALID_ARGUMENT,
        Code.INVALID_ARGUMENT,
    ]
    assert client.read(session(0)) == [session(5, (4, 0))]


# --- in process


def test_the_same_objects_in_process(sw: Switch) -> None:
    ways = sw.profile("ways")
    ways.insert(1, "send", {"port": 1})
    ways.insert(2, "send", {"port": 2})
    ways.set_group(7, [1, 2])
    sw.insert("route", {"dst": 5}, Member(1))
    sw.insert("route", {"dst": 6}, Group(7))
    assert {e.match["dst"]: e.action for e in sw.entries("route")} == {5: Member(1), 6: Group(7)}
    assert out_ports(sw, 5) == [1]
    assert {out_ports(sw, 6, src)[0] for src in range(16)} == {1, 2}
    sw.clone_session(5, [(4, 0)], truncate=16)
    sw.value_set("tag_types", [0x9999])
    tagged = frame(5, ether_type=0x9999, rest=b"tag and more")
    assert sorted(sw.process(3, tagged)) == [(1, tagged), (4, tagged[:16])]
    (first, *_) = sw.digests()
    assert (first.name, first.fields) == ("learn_t", {"station": 9, "port": 3})
    assert sw.digests() == []
    sw.insert("flows", {"src": 9}, "admit")
    sw.direct_meter("flows", {"src": 9}, (1, 14, 1, 14))
    sw.process(3, frame(5), now=5.0)
    (entry,) = sw.entries("flows")
    assert (entry.meter, entry.last_hit) == (MeterConfig(1, 14, 1, 14), 5.0)


def test_a_default_entry_may_refer_to_a_member(sw: Switch) -> None:
    sw.profile("ways").insert(1, "send", {"port": 6})
    assert out_ports(sw, 5) == [0]
    sw.set_default("route", Member(1))
    assert sw.default_entry("route").action == Member(1)
    assert out_ports(sw, 5) == [6]
    sw.set_default("route", None)
    assert out_ports(sw, 5) == [0]


def test_reconcile_keeps_every_kind_of_object(sw: Switch, client: Controller) -> None:
    written = [
        member(sw, 1, 1),
        group(sw, 7, (1, 2)),
        route(sw, 5, group=7),
        flow(sw, 9, idle_timeout_ns=3_600_000_000_000, metadata=b"mine"),
        session(5, (4, 0), (6, 1), packet_length_bytes=16),
        tag_types(sw, 0x9999),
        learn(sw, max_list_size=1),
    ]
    written[3].table_entry.meter_config.cir = written[3].table_entry.meter_config.pir = 5
    client.write(*(modify(e) if e.HasField("value_set_entry") else insert(e) for e in written))
    client.configure(sw, SetRequest.RECONCILE_AND_COMMIT)
    everything = [Entity() for _ in range(6)]
    everything[0].action_profile_member.SetInParent()
    everything[1].action_profile_group.SetInParent()
    everything[2].table_entry.meter_config.SetInParent()
    everything[3].packet_replication_engine_entry.SetInParent()
    everything[4].value_set_entry.SetInParent()
    everything[5].digest_entry.SetInParent()
    found = client.read(*everything)
    assert len(found) == len(written)
    assert all(entity in found for entity in written)


def test_rollback_puts_back_every_kind_of_object(sw: Switch, client: Controller) -> None:
    limited = group(sw, 7, (1, 2))
    limited.action_profile_group.max_size = 2
    metered = flow(sw, 9, idle_timeout_ns=3_600_000_000_000, metadata=b"mine")
    metered.table_entry.meter_config.cir = metered.table_entry.meter_config.pir = 5
    written = [member(sw, 1, 1), limited, route(sw, 5, group=7), metered, flow(sw, 8), session(5, (4, 0)),
               learn(sw, max_list_size=1)]  # fmt: skip
    client.write(*map(insert, written), modify(tag_types(sw, 0x9999)))
    everything = [Entity() for _ in range(6)]
    everything[0].action_profile_member.SetInParent()
    everything[1].action_profile_group.SetInParent()
    everything[2].table_entry.meter_config.SetInParent()
    everything[3].packet_replication_engine_entry.SetInParent()
    everything[4].value_set_entry.SetInParent()
    everything[5].digest_entry.SetInParent()
    before = client.read(*everything)
    now_metered = flow(sw, 8, metadata=b"new")
    now_metered.table_entry.meter_config.cir = now_metered.table_entry.meter_config.pir = 7
    changes = [
        modify(now_metered),
        modify(flow(sw, 9)),
        delete(metered),
        modify(group(sw, 7, (1, 1))),
        delete(route(sw, 5)),
        delete(limited),
        delete(member(sw, 1, 1)),
        insert(one_shot(sw, 6, 1, 2)),
        modify(session(5, (6, 1))),
        modify(tag_types(sw)),
        delete(learn(sw)),
    ]
    with pytest.raises(grpc.RpcError):
        client.write(*changes, delete(flow(sw, 7)), atomicity=p4runtime_pb2.WriteRequest.ROLLBACK_ON_ERROR)
    after = client.read(*everything)
    assert sorted(map(str, after)) == sorted(map(str, before))
    client.write(*changes, atomicity=p4runtime_pb2.WriteRequest.ROLLBACK_ON_ERROR)
    assert client.read(*everything) != before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda sw: sw.profile("ways").delete(1), "in use"),
        (lambda sw: sw.set_default("route", Member(9)), "not there"),
        (lambda sw: sw.set_default("translate", Group(1)), "not there"),
        (lambda sw: sw.profile("ways").insert(1, "send", {"port": 1}), "is there"),
        (lambda sw: sw.profile("ways").set_group(8, [5]), "not there"),
        (lambda sw: sw.profile("rewrites").set_group(8, []), "no selector"),
        (lambda sw: sw.insert("route", {"dst": 8}, Member(9)), "not there"),
        (lambda sw: sw.insert("route", {"dst": 8}, "send", {"port": 1}), "give a Member or a Group"),
        (lambda sw: sw.insert("route", {"dst": 8}, Member(1), priority=1), "priority 1 means nothing"),
        (lambda sw: sw.clone_session(5, [(1 << 33, 0)]), "out of range"),
        (lambda sw: sw.clone_session(40000, [(1, 0)]), "out of range, expected 0 to 32767"),
        (lambda sw: sw.multicast_group(-1, [(1, 0)]), "out of range"),
        (lambda sw: sw.meter("port_rate").__setitem__(4, None), "outside 0..3"),
        (lambda sw: sw.meter("port_rate").__setitem__(0, (-1, 0, 0, 0)), "out of range"),
        (lambda sw: sw.direct_meter("flows", {"src": 1}, None), "not there"),
        (lambda sw: sw.value_set("tag_types", [1 << 16]), r"does not fit bit<16>"),
        (lambda sw: sw.value_set("tag_types", [1, 2, 3]), "full"),
    ],
)
def test_refusals_in_process_say_why_and_change_nothing(
    sw: Switch, call: Callable[[Switch], object], message: str
) -> None:
    sw.profile("ways").insert(1, "send", {"port": 1})
    sw.insert("route", {"dst": 5}, Member(1))
    before = sw.entries("route")
    with pytest.raises(EntryError, match=message):
        call(sw)
    assert sw.entries("route") == before
    assert out_ports(sw, 5) == [1]


def test_registers_of_any_type_are_read_and_written_as_bits(primary: Controller) -> None:
    registers = "register<int<12>>(2) a; register<port_t>(2) b; register<kind_t>(2) c;"
    types = "type bit<9> port_t; enum bit<8> kind_t { x = 1 }"
    source = v1program(
        "a.write(0, -1); b.write(0, (port_t) 9w5); c.write(0, kind_t.x);", top=types, locals=registers
    )
    with Switch.from_source(preprocess_text(source).text) as program:
        primary.configure(program)
        for register, value in zip(
            program.p4info.registers, (b"\x0f\xff", b"\x01\x02", b"\x07"), strict=True
        ):
            entity = p4runtime_pb2.Entity()
            entity.register_entry.register_id = register.preamble.id
            entity.register_entry.index.index = 1
            entity.register_entry.data.bitstring = value
            primary.write(modify(entity))
            assert primary.read(entity) == [entity]
