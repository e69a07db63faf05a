# SPDX-License-Identifier: Apache-2.0
"""Messages for objects.p4, and its packets."""

from pathlib import Path
from typing import TypeAlias

from p4.v1 import p4runtime_pb2

from inagg_switch import Switch
from tests.switch.p4runtime.client import Controller, Update, action_id, batch_codes, id_of, table_id

OBJECTS_P4 = Path(__file__).parent / "objects.p4"
Entity: TypeAlias = p4runtime_pb2.Entity


def frame(dst: int, src: int = 9, ether_type: int = 0x0800, rest: bytes = b"") -> bytes:
    return dst.to_bytes(6, "big") + src.to_bytes(6, "big") + ether_type.to_bytes(2, "big") + rest


def out_ports(sw: Switch, dst: int, src: int = 9, port: int = 3) -> list[int]:
    return [out for out, _ in sw.process(port, frame(dst, src))]


def refused(controller: Controller, *updates: Update) -> list[int]:
    return [code for code, _ in batch_codes(controller.write, *updates)]


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


def flow(sw: Switch, src: int, **fields: int | bytes) -> Entity:
    entity = Entity()
    entity.table_entry.table_id = table_id(sw, "flows")
    entity.table_entry.match.add(field_id=1).exact.value = bytes([src])
    entity.table_entry.action.action.action_id = action_id(sw, "admit")
    for name, value in fields.items():
        setattr(entity.table_entry, name, value)
    return entity


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


def learn(sw: Switch, **config: int) -> Entity:
    entity = Entity()
    entity.digest_entry.digest_id = id_of(sw.p4info.digests, "learn_t")
    entity.digest_entry.config.SetInParent()
    for name, value in config.items():
        setattr(entity.digest_entry.config, name, value)
    return entity
