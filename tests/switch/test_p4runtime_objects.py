# SPDX-License-Identifier: Apache-2.0
"""Value sets, meters, digests, action profiles and selectors, clone sessions, idle timeouts: over P4Runtime, seen in
what the program does with packets."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from p4.v1 import p4data_pb2, p4runtime_pb2
from p4runtime_client import Controller, Update, action_id, batch_codes, delete, insert, modify, table_id

from inagg_switch import EntryError, Group, Member, MeterConfig, Switch, p4runtime_service
from inagg_switch.p4runtime_digests import Digests
from inagg_switch.p4runtime_errors import Code, RequestError
from inagg_switch.p4runtime_idle import expired
from inagg_switch.p4runtime_names import Digest
from inagg_switch.p4runtime_target import Target
from inagg_switch.p4runtime_write import apply_update
from inagg_switch.ports import Ports
from inagg_switch.server import SwitchServer

OBJECTS_P4 = Path(__file__).parent / "p4runtime_objects.p4"
Entity = p4runtime_pb2.Entity


@pytest.fixture
def sw() -> Iterator[Switch]:
    with Switch.from_p4(OBJECTS_P4) as made:
        yield made


@pytest.fixture
def controller(sw: Switch, tmp_path: Path, connect) -> Iterator[Controller]:
    """The primary of a switch that runs `sw`."""
    server = SwitchServer(Ports([]), device_id=1, address=f"unix:{tmp_path}/s.sock")
    server.load(sw)
    server.start()
    made = connect(f"unix:{tmp_path}/s.sock")
    made.arbitrate()
    assert made.next().arbitration.status.code == Code.OK
    yield made
    server.stop()


def frame(dst: int, src: int = 9, ether_type: int = 0x0800, rest: bytes = b"") -> bytes:
    return dst.to_bytes(6, "big") + src.to_bytes(6, "big") + ether_type.to_bytes(2, "big") + rest


def out_ports(sw: Switch, dst: int, src: int = 9, port: int = 3) -> list[int]:
    return [out for out, _ in sw.process(port, frame(dst, src))]


def id_of(objects, name: str) -> int:
    return next(o.preamble.id for o in objects if o.preamble.name.endswith(name))


def refused(controller: Controller, *updates: Update) -> list[int]:
    return [code for code, _ in batch_codes(controller.write, *updates)]


# --- action profiles


def send(sw: Switch, port: int) -> p4runtime_pb2.Action:
    action = p4runtime_pb2.Action(action_id=action_id(sw, "send"))
    action.params.add(param_id=1, value=bytes([port]))
    return action


def member(sw: Switch, number: int, port: int) -> Entity:
    entity = Entity()
    entity.action_profile_member.action_profile_id = id_of(sw.p4info.action_profiles, "ways")
    entity.action_profile_member.member_id = number
    entity.action_profile_member.action.CopyFrom(send(sw, port))
    return entity


def group(sw: Switch, number: int, *members: tuple[int, int]) -> Entity:
    entity = Entity()
    out = entity.action_profile_group
    out.action_profile_id, out.group_id = id_of(sw.p4info.action_profiles, "ways"), number
    for identity, weight in members:
        out.members.add(member_id=identity, weight=weight)
    return entity


def route(sw: Switch, dst: int, **action: int) -> Entity:
    entity = Entity()
    entity.table_entry.table_id = table_id(sw, "route")
    entity.table_entry.match.add(field_id=1).exact.value = bytes([dst])
    for name, value in action.items():
        setattr(entity.table_entry.action, f"action_profile_{name}_id", value)
    return entity


def one_shot(sw: Switch, dst: int, *ports: int) -> Entity:
    entity = route(sw, dst)
    for port in ports:
        one = entity.table_entry.action.action_profile_action_set.action_profile_actions.add(weight=1)
        one.action.CopyFrom(send(sw, port))
    return entity


def test_members_and_groups_carry_packets(sw: Switch, controller: Controller):
    controller.write(insert(member(sw, 1, 1)), insert(member(sw, 2, 2)), insert(group(sw, 7, (1, 1), (2, 3))))
    controller.write(insert(route(sw, 5, member=1)), insert(route(sw, 6, group=7)))
    assert out_ports(sw, 5) == [1]
    stations = random.Random(1)
    seen = [out_ports(sw, 6, stations.getrandbits(48))[0] for _ in range(400)]
    assert set(seen) == {1, 2}
    assert 70 < seen.count(1) < 130  # a quarter
    controller.write(modify(member(sw, 1, 4)))
    assert out_ports(sw, 5) == [4]
    controller.write(modify(group(sw, 7, (1, 1))))
    assert {out_ports(sw, 6, src)[0] for src in range(8)} == {4}
    controller.write(modify(route(sw, 5, group=7)))
    assert out_ports(sw, 5) == [4]


def test_members_groups_and_references_read_back_as_written(sw: Switch, controller: Controller):
    written = [member(sw, 1, 1), member(sw, 2, 2), group(sw, 7, (1, 1), (2, 3))]
    entries = [route(sw, 5, member=1), route(sw, 6, group=7), one_shot(sw, 8, 1, 2)]
    controller.write(*(insert(entity) for entity in (*written, *entries)))
    members, groups, tables = Entity(), Entity(), Entity()
    members.action_profile_member.SetInParent()
    groups.action_profile_group.SetInParent()
    tables.table_entry.table_id = table_id(sw, "route")
    assert controller.read(members, groups) == written
    found = controller.read(tables)
    assert len(found) == 3
    assert all(entity in found for entity in entries)


def test_a_one_shot_set_lives_and_dies_with_its_entry(sw: Switch, controller: Controller):
    controller.write(insert(one_shot(sw, 5, 1, 2)))
    assert {out_ports(sw, 5, src)[0] for src in range(16)} == {1, 2}
    controller.write(modify(one_shot(sw, 5, 3)))
    assert {out_ports(sw, 5, src)[0] for src in range(16)} == {3}
    for _ in range(20):  # the profile has room for 16 members
        controller.write(delete(one_shot(sw, 5)), insert(one_shot(sw, 5, 1, 2)))
    assert refused(controller, insert(one_shot(sw, 5, 4))) == [Code.ALREADY_EXISTS]
    assert {out_ports(sw, 5, src)[0] for src in range(16)} == {1, 2}


def test_refused_profile_updates_change_nothing(sw: Switch, controller: Controller):
    controller.write(insert(member(sw, 1, 1)), insert(group(sw, 7, (1, 1))), insert(route(sw, 6, group=7)))
    direct = route(sw, 5)
    direct.table_entry.action.action.CopyFrom(send(sw, 1))
    other_action = member(sw, 3, 1)
    other_action.action_profile_member.action.action_id = action_id(sw, "admit")
    watched = group(sw, 8, (1, 1))
    watched.action_profile_group.members[0].watch_port = b"\x01"
    assert refused(
        controller,
        insert(member(sw, 1, 2)),
        modify(member(sw, 2, 2)),
        delete(member(sw, 1, 2)),
        insert(member(sw, 0, 2)),
        insert(member(sw, 1 << 31, 2)),
        insert(other_action),
        insert(group(sw, 7)),
        delete(group(sw, 7)),
        insert(group(sw, 8, (2, 1))),
        insert(group(sw, 8, (1, 0))),
        insert(watched),
        insert(route(sw, 5, member=2)),
        insert(direct),
    ) == [
        Code.ALREADY_EXISTS,
        Code.NOT_FOUND,
        Code.FAILED_PRECONDITION,
        Code.OUT_OF_RANGE,
        Code.OUT_OF_RANGE,
        Code.INVALID_ARGUMENT,
        Code.ALREADY_EXISTS,
        Code.FAILED_PRECONDITION,
        Code.NOT_FOUND,
        Code.INVALID_ARGUMENT,
        Code.UNIMPLEMENTED,
        Code.NOT_FOUND,
        Code.INVALID_ARGUMENT,
    ]
    assert out_ports(sw, 6) == [1]
    assert out_ports(sw, 5) == [0]


# --- meters


def test_meters_are_configured_and_read(sw: Switch, controller: Controller):
    sw.profile("ways").insert(1, "send", {"port": 1})
    sw.insert("route", {"dst": 5}, Member(1))
    entity = Entity()
    entity.meter_entry.meter_id = id_of(sw.p4info.meters, "port_rate")
    entity.meter_entry.index.index = 3
    config = entity.meter_entry.config
    config.cir, config.cburst, config.pir, config.pburst = 1, 1, 1, 1
    controller.write(modify(entity))
    assert [out_ports(sw, 5) for _ in range(3)] == [[1], [], []]  # the burst is one packet
    assert sw.meter("port_rate")[3] == MeterConfig(1, 1, 1, 1)
    assert controller.read(entity) == [entity]
    everything = Entity()
    everything.meter_entry.SetInParent()
    found = controller.read(everything)
    assert [e.meter_entry.HasField("config") for e in found] == [False, False, False, True]
    entity.meter_entry.ClearField("config")
    controller.write(modify(entity))
    assert sw.meter("port_rate")[3] is None
    assert out_ports(sw, 5) == [1]


@pytest.mark.parametrize(("field", "value"), [("cir", -1), ("pburst", -1), ("cir", 5), ("eburst", 1)])
def test_a_meter_that_makes_no_sense_is_refused(sw: Switch, controller: Controller, field: str, value: int):
    entity = Entity()
    entity.meter_entry.meter_id = id_of(sw.p4info.meters, "port_rate")
    setattr(entity.meter_entry.config, field, value)
    assert refused(controller, modify(entity), insert(entity)) == [Code.INVALID_ARGUMENT] * 2
    assert sw.meter("port_rate")[0] is None


def flow(sw: Switch, src: int, **fields) -> Entity:
    entity = Entity()
    entity.table_entry.table_id = table_id(sw, "flows")
    entity.table_entry.match.add(field_id=1).exact.value = bytes([src])
    entity.table_entry.action.action.action_id = action_id(sw, "admit")
    for name, value in fields.items():
        setattr(entity.table_entry, name, value)
    return entity


def test_direct_meters_come_with_their_entry_and_alone(sw: Switch, controller: Controller):
    entity = flow(sw, 9)
    config = entity.table_entry.meter_config
    config.cir, config.cburst, config.pir, config.pburst = 1, 14, 1, 14
    controller.write(insert(entity))
    assert [len(sw.process(3, frame(5))) for _ in range(2)] == [1, 0]  # 14 bytes of burst, one frame
    wanted = Entity()
    wanted.table_entry.table_id = entity.table_entry.table_id
    wanted.table_entry.meter_config.SetInParent()
    assert controller.read(wanted) == [entity]
    direct = Entity()
    direct.direct_meter_entry.table_entry.table_id = entity.table_entry.table_id
    (found,) = controller.read(direct)
    assert found.direct_meter_entry.config == config
    found.direct_meter_entry.ClearField("config")
    controller.write(modify(found))
    assert [e.meter for e in sw.entries("flows")] == [None]
    missing = Entity()
    missing.direct_meter_entry.table_entry.CopyFrom(flow(sw, 8).table_entry)
    assert refused(controller, modify(missing)) == [Code.NOT_FOUND]


def test_the_meter_of_a_default_entry_cannot_be_configured(sw: Switch, controller: Controller):
    entity = Entity()
    entry = entity.table_entry
    entry.table_id, entry.is_default_action = table_id(sw, "flows"), True
    entry.action.action.action_id = action_id(sw, "admit")
    controller.write(modify(entity))
    entry.ClearField("action")
    entry.meter_config.SetInParent()
    assert refused(controller, modify(entity)) == [Code.UNIMPLEMENTED]
    assert sw.default_entry("flows").action.endswith("admit")


# --- clone sessions and value sets


def session(number: int, *replicas: tuple[int, int], **fields: int) -> Entity:
    entity = Entity()
    out = entity.packet_replication_engine_entry.clone_session_entry
    out.session_id = number
    for port, rid in replicas:
        out.replicas.add(egress_port=port, instance=rid)
    for name, value in fields.items():
        setattr(out, name, value)
    return entity


def tag_types(sw: Switch, *values: int) -> Entity:
    entity = Entity()
    entity.value_set_entry.value_set_id = id_of(sw.p4info.value_sets, "tag_types")
    for value in values:
        entity.value_set_entry.members.add().match.add(field_id=1).exact.value = value.to_bytes(2, "big")
    return entity


def test_clones_go_to_the_session_of_packets_that_the_value_set_selects(sw: Switch, controller: Controller):
    tagged = frame(5, ether_type=0x9999, rest=b"tag and more")
    whole, cut = session(5, (4, 0)), session(5, (4, 0), (6, 1), packet_length_bytes=16)
    controller.write(insert(whole))
    assert [port for port, _ in sw.process(3, tagged)] == [0]
    controller.write(modify(tag_types(sw, 0x9999, 0x8888)))
    assert sorted(sw.process(3, tagged)) == [(0, tagged), (4, tagged)]
    controller.write(modify(cut))
    assert sorted(sw.process(3, tagged)) == [(0, tagged), (4, tagged[:16]), (6, tagged[:16])]
    asked = session(0)
    assert controller.read(asked, tag_types(sw)) == [cut, tag_types(sw, 0x9999, 0x8888)]
    controller.write(delete(cut), modify(tag_types(sw)))
    assert controller.read(asked) == []
    assert sw.process(3, tagged) == [(0, tagged)]


def test_refused_sessions_and_value_sets(sw: Switch, controller: Controller):
    controller.write(insert(session(5, (4, 0))))
    assert refused(
        controller,
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
    assert controller.read(session(0)) == [session(5, (4, 0))]


# --- digests


def learn(sw: Switch, **config: int) -> Entity:
    entity = Entity()
    entity.digest_entry.digest_id = id_of(sw.p4info.digests, "learn_t")
    entity.digest_entry.config.SetInParent()
    for name, value in config.items():
        setattr(entity.digest_entry.config, name, value)
    return entity


def test_digests_reach_the_controller_once_until_acknowledged(sw: Switch, controller: Controller):
    entity = learn(sw, max_list_size=2, max_timeout_ns=10**12, ack_timeout_ns=10**12)
    sw.process(3, frame(5, src=1))  # nobody asked yet
    controller.write(insert(entity))
    assert controller.read(learn(sw)) == [entity]
    for src in (7, 7, 8):
        sw.process(3, frame(5, src=src))
    message = controller.next().digest
    assert (message.digest_id, message.list_id) == (entity.digest_entry.digest_id, 1)
    values = [[m.bitstring for m in one.struct.members] for one in message.data]
    assert values == [[b"\x07", b"\x03"], [b"\x08", b"\x03"]]
    ack = p4runtime_pb2.StreamMessageRequest()
    ack.digest_ack.digest_id, ack.digest_ack.list_id = message.digest_id, 2
    controller.send(ack)
    assert controller.next().error.canonical_code == Code.NOT_FOUND
    ack.digest_ack.list_id = 1
    controller.send(ack)
    controller.write(modify(learn(sw, max_list_size=1)))
    sw.process(3, frame(5, src=7))
    assert controller.next().digest.list_id == 2


def test_a_notification_that_fails_is_logged_and_does_not_end_the_others(
    sw: Switch, controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    whole = Digests.add
    failed = threading.Event()

    def add(digests: Digests, digest: int, data: bytes, now: float) -> list[p4runtime_pb2.DigestList]:
        if data and not failed.is_set():
            failed.set()
            raise ValueError("broken")
        return whole(digests, digest, data, now)

    monkeypatch.setattr(Digests, "add", add)
    controller.write(insert(learn(sw, max_list_size=1)))
    sw.process(3, frame(5, src=7))
    sw.process(3, frame(5, src=8))
    (one,) = controller.next().digest.data
    assert one.struct.members[0].bitstring == b"\x08"
    assert failed.is_set()
    assert "ValueError: broken" in caplog.text


def test_only_enabled_digests_are_queued_and_only_so_many(
    sw: Switch, controller: Controller, wait_until, monkeypatch: pytest.MonkeyPatch
):
    whole = Digests.add
    seen: list[int] = []
    go_on = threading.Event()

    def add(digests: Digests, digest: int, data: bytes, now: float) -> list[p4runtime_pb2.DigestList]:
        if data:
            seen.append(data[5])  # the last byte of `station`
            assert go_on.wait(10)
        return whole(digests, digest, data, now)

    monkeypatch.setattr(Digests, "add", add)
    monkeypatch.setattr(p4runtime_service, "MAX_QUEUED_DIGESTS", 3)
    sw.process(3, frame(5, src=1))
    controller.write(insert(learn(sw, max_list_size=1)))
    sw.process(3, frame(5, src=2))
    wait_until(lambda: seen == [2], "the first digest leaves the queue")
    for src in range(3, 12):
        sw.process(3, frame(5, src=src))
    go_on.set()
    stations = [controller.next().digest.data[0].struct.members[0].bitstring[-1] for _ in range(4)]
    assert stations == [2, 3, 4, 5]
    controller.write(delete(learn(sw)))
    sw.process(3, frame(5, src=20))
    controller.write(insert(learn(sw, max_list_size=1)))
    sw.process(3, frame(5, src=21))
    assert controller.next().digest.data[0].struct.members[0].bitstring == b"\x15"
    assert seen == [2, 3, 4, 5, 21]


def struct(*fields: bytes) -> p4data_pb2.P4Data:
    message = p4data_pb2.P4Data()
    for value in fields:
        message.struct.members.add().bitstring = value
    return message


def enabled(**config: int) -> Digests:
    digests = Digests([Digest(1, "d", "struct", (16,))])
    message = p4runtime_pb2.DigestEntry(digest_id=1)
    for name, value in config.items():
        setattr(message.config, name, value)
    digests.write(Update.INSERT, message)
    return digests


def test_a_digest_waits_for_max_timeout_and_no_longer():
    digests = enabled(max_timeout_ns=2_000_000_000, max_list_size=10)
    assert digests.add(1, b"\0\1", 100.0) == []
    assert digests.add(1, b"\0\2", 101.0) == []
    assert digests.due(101.9) == []
    (message,) = digests.due(102.0)
    assert list(message.data) == [struct(b"\1"), struct(b"\2")]
    assert digests.due(200.0) == []


def test_a_digest_is_sent_again_when_its_list_is_old_or_acknowledged():
    digests = enabled(max_list_size=1, ack_timeout_ns=1_000_000_000)
    assert len(digests.add(1, b"\0\1", 10.0)) == 1
    assert digests.add(1, b"\0\1", 10.9) == []
    assert len(digests.add(1, b"\0\1", 11.0)) == 1
    digests.acknowledge(p4runtime_pb2.DigestListAck(digest_id=1, list_id=2))
    assert len(digests.add(1, b"\0\1", 11.1)) == 1


def test_digests_that_are_not_enabled_go_nowhere():
    digests = Digests([Digest(1, "d", "struct", (16,))])
    assert digests.add(1, b"\0\1", 0.0) == []
    with pytest.raises(RequestError, match="not enabled"):
        digests.write(Update.MODIFY, p4runtime_pb2.DigestEntry(digest_id=1))


# --- idle timeouts


def test_an_idle_entry_is_told_once_a_timeout(sw: Switch):
    now = 100.0
    target = Target(sw, p4runtime_pb2.ForwardingPipelineConfig(), lambda: now)
    apply_update(target, insert(flow(sw, 9, idle_timeout_ns=2_000_000_000, metadata=b"mine")))
    apply_update(target, insert(flow(sw, 8)))  # never idle
    now = 101.9
    assert expired(target) == []
    sw.process(3, frame(5, src=9), now)
    now = 103.8
    assert expired(target) == []
    now = 103.95
    (entry,) = expired(target)
    assert (entry.match[0].exact.value, entry.idle_timeout_ns, entry.metadata) == (
        b"\x09",
        2 * 10**9,
        b"mine",
    )
    assert expired(target) == []
    now = 106.0
    assert len(expired(target)) == 1
    apply_update(target, delete(flow(sw, 9)))
    now = 200.0
    assert expired(target) == []


def test_idle_entries_are_notified_and_their_times_are_read(sw: Switch, controller: Controller):
    entity = flow(sw, 9, idle_timeout_ns=50_000_000)
    controller.write(insert(entity))
    notification = controller.next().idle_timeout_notification
    assert [e.match[0].exact.value for e in notification.table_entry] == [b"\x09"]
    wanted = Entity()
    wanted.table_entry.table_id = entity.table_entry.table_id
    assert controller.read(wanted) == [entity]
    wanted.table_entry.time_since_last_hit.SetInParent()
    (found,) = controller.read(wanted)
    assert found.table_entry.time_since_last_hit.elapsed_ns >= 50_000_000


def test_idle_timeouts_where_there_are_none_are_refused(sw: Switch, controller: Controller):
    other, default, negative = route(sw, 5, member=1), flow(sw, 9), flow(sw, 9, idle_timeout_ns=-1)
    other.table_entry.idle_timeout_ns = 1
    default.table_entry.is_default_action = True
    default.table_entry.ClearField("match")
    default.table_entry.idle_timeout_ns = 1
    written = flow(sw, 9)
    written.table_entry.time_since_last_hit.SetInParent()
    updates = insert(other), modify(default), insert(negative), insert(written)
    assert refused(controller, *updates) == [Code.INVALID_ARGUMENT] * 4
    assert sw.entries("flows") == sw.entries("route") == []


# --- in process


def test_the_same_objects_in_process(sw: Switch):
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda sw: sw.profile("ways").delete(1), "in use"),
        (lambda sw: sw.profile("ways").insert(1, "send", {"port": 1}), "is there"),
        (lambda sw: sw.profile("ways").set_group(8, [5]), "not there"),
        (lambda sw: sw.profile("rewrites").set_group(8, []), "no selector"),
        (lambda sw: sw.insert("route", {"dst": 8}, Member(9)), "not there"),
        (lambda sw: sw.insert("route", {"dst": 8}, "send", {"port": 1}), "do not fit"),
        (lambda sw: sw.clone_session(5, [(1 << 33, 0)]), "out of range"),
        (lambda sw: sw.clone_session(40000, [(1, 0)]), "do not fit"),
        (lambda sw: sw.multicast_group(-1, [(1, 0)]), "out of range"),
        (lambda sw: sw.meter("port_rate").__setitem__(4, None), "outside 0..3"),
        (lambda sw: sw.meter("port_rate").__setitem__(0, (-1, 0, 0, 0)), "none negative"),
        (lambda sw: sw.direct_meter("flows", {"src": 1}, None), "not there"),
        (lambda sw: sw.value_set("tag_types", [1 << 16]), r"does not fit bit<16>"),
        (lambda sw: sw.value_set("tag_types", [1, 2, 3]), "full"),
    ],
)
def test_refusals_in_process_say_why_and_change_nothing(sw: Switch, call, message: str):
    sw.profile("ways").insert(1, "send", {"port": 1})
    sw.insert("route", {"dst": 5}, Member(1))
    before = sw.entries("route")
    with pytest.raises(EntryError, match=message):
        call(sw)
    assert sw.entries("route") == before
    assert out_ports(sw, 5) == [1]
