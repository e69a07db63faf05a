# SPDX-License-Identifier: Apache-2.0
"""The switch answers any update with a status. A refused update changes nothing."""

from collections.abc import Callable
from functools import partial

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.arbitration import Arbitration, Session
from inagg_switch.p4runtime.batch import WriteBatch
from inagg_switch.p4runtime.entities.digests import Digests
from inagg_switch.p4runtime.entities.names import Digest, Field
from inagg_switch.p4runtime.entities.packets import ControllerHeader, packet_out
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.errors import Code, RequestError
from inagg_switch.p4runtime.read import read_entities
from inagg_switch.p4runtime.rollback import write_all_or_none
from inagg_switch.p4runtime.write import apply_update
from inagg_switch.switch import Switch
from tests.switch.p4runtime.client import SMALL_P4, Update
from tests.switch.p4runtime.objects import OBJECTS_P4

PROGRAM = Switch.from_p4(SMALL_P4)
INFO = PROGRAM.p4info
ANSWERS = set(Code) - {Code.OK, Code.UNKNOWN, Code.INTERNAL, Code.UNAVAILABLE}

TABLES = [table.preamble.id for table in INFO.tables]
ACTIONS = [action.preamble.id for action in INFO.actions]
ARRAYS = [c.preamble.id for c in INFO.counters] + [r.preamble.id for r in INFO.registers]


def mostly(*known: int) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from(known), st.sampled_from(known), st.integers(0, 2**32 - 1))


small_bytes = st.one_of(
    st.sampled_from([b"\x01", b"\x02", b"\x08\x00", b"\x02\x00\x00\x00\x00\x01"]), st.binary(max_size=8)
)
int64 = st.one_of(st.integers(0, 20), st.integers(-(2**63), 2**63 - 1))
int32 = st.one_of(st.integers(0, 3), st.integers(-(2**31), 2**31 - 1))

counts = st.builds(p4runtime_pb2.CounterData, byte_count=int64, packet_count=int64)
indices = st.builds(p4runtime_pb2.Index, index=int64)

matches = st.one_of(
    st.builds(
        lambda i, v: p4runtime_pb2.FieldMatch(field_id=i, exact={"value": v}), st.integers(0, 5), small_bytes
    ),
    st.builds(
        lambda v, p: p4runtime_pb2.FieldMatch(field_id=1, lpm={"value": v, "prefix_len": p}),
        small_bytes,
        st.one_of(st.sampled_from([8, 47, 48]), int32),
    ),
    st.builds(
        lambda v, m: p4runtime_pb2.FieldMatch(field_id=2, ternary={"value": v, "mask": m}),
        small_bytes,
        small_bytes,
    ),
    st.builds(
        lambda a, b: p4runtime_pb2.FieldMatch(field_id=3, range={"low": a, "high": b}),
        small_bytes,
        small_bytes,
    ),
    st.builds(lambda v: p4runtime_pb2.FieldMatch(field_id=4, optional={"value": v}), small_bytes),
)
actions = st.builds(
    lambda action, params: p4runtime_pb2.TableAction(
        action={"action_id": action, "params": [{"param_id": i, "value": v} for i, v in params]}
    ),
    mostly(*ACTIONS),
    st.lists(st.tuples(st.integers(0, 2), small_bytes), max_size=2),
)
table_entries = st.builds(
    p4runtime_pb2.TableEntry,
    table_id=mostly(*TABLES),
    match=st.lists(matches, max_size=4),
    action=st.one_of(st.none(), actions, actions),
    priority=int32,
    is_default_action=st.sampled_from([False, False, True]),
    counter_data=st.one_of(st.none(), counts),
    idle_timeout_ns=st.sampled_from([0, 0, 0, 5]),
    metadata=st.binary(max_size=2),
)
groups = st.builds(
    lambda number, replicas: p4runtime_pb2.PacketReplicationEngineEntry(
        multicast_group_entry={
            "multicast_group_id": number,
            "replicas": [{"egress_port": port, "instance": rid} for port, rid in replicas],
        }
    ),
    mostly(0, 1, 2, 65535, 65536),
    st.lists(st.tuples(mostly(0, 1, 511, 512), mostly(0, 1, 65536)), max_size=3),
)
entities = st.one_of(
    st.builds(p4runtime_pb2.Entity, table_entry=table_entries),
    st.builds(p4runtime_pb2.Entity, packet_replication_engine_entry=groups),
    st.builds(
        lambda entry, data: p4runtime_pb2.Entity(direct_counter_entry={"table_entry": entry, "data": data}),
        table_entries,
        st.one_of(st.none(), counts),
    ),
    st.builds(
        lambda i, index, data: p4runtime_pb2.Entity(
            counter_entry={"counter_id": i, "index": index, "data": data}
        ),
        mostly(*ARRAYS),
        st.one_of(st.none(), indices),
        st.one_of(st.none(), counts),
    ),
    st.builds(
        lambda i, index, data: p4runtime_pb2.Entity(
            register_entry={"register_id": i, "index": index, "data": {"bitstring": data}}
        ),
        mostly(*ARRAYS),
        st.one_of(st.none(), indices),
        small_bytes,
    ),
    st.just(p4runtime_pb2.Entity()),
)

# --- a program with the other kinds of objects

OBJECTS = Switch.from_p4(OBJECTS_P4)
OBJECT_INFO = OBJECTS.p4info
OBJECT_IDS = [
    one.preamble.id
    for kind in (OBJECT_INFO.action_profiles, OBJECT_INFO.meters, OBJECT_INFO.digests, OBJECT_INFO.value_sets)
    for one in kind
]
OBJECT_ACTIONS = [action.preamble.id for action in OBJECT_INFO.actions]

plain_actions = st.builds(
    lambda action, value: p4runtime_pb2.Action(
        action_id=action, params=[{"param_id": 1, "value": value}] if value else []
    ),
    mostly(*OBJECT_ACTIONS),
    small_bytes,
)
few = mostly(0, 1, 2, 3)
meter_configs = st.one_of(
    st.none(), st.builds(p4runtime_pb2.MeterConfig, cir=int64, cburst=int64, pir=int64, pburst=int64)
)
references = st.one_of(
    st.none(),
    st.builds(lambda i: p4runtime_pb2.TableAction(action_profile_member_id=i), few),
    st.builds(lambda i: p4runtime_pb2.TableAction(action_profile_group_id=i), few),
    st.builds(lambda a: p4runtime_pb2.TableAction(action=a), plain_actions),
    st.builds(
        lambda parts: p4runtime_pb2.TableAction(
            action_profile_action_set={
                "action_profile_actions": [{"action": a, "weight": w} for a, w in parts]
            }
        ),
        st.lists(st.tuples(plain_actions, int32), max_size=3),
    ),
)
object_entries = st.builds(
    lambda table, value, action, meter, idle, default: p4runtime_pb2.TableEntry(
        table_id=table,
        match=[] if default else [{"field_id": 1, "exact": {"value": value}}],
        action=action,
        meter_config=meter,
        idle_timeout_ns=idle,
        is_default_action=default,
    ),
    mostly(*(table.preamble.id for table in OBJECT_INFO.tables)),
    small_bytes,
    references,
    meter_configs,
    st.sampled_from([0, 0, 5, -1]),
    st.sampled_from([False, False, False, True]),
)
object_entities = st.one_of(
    st.builds(p4runtime_pb2.Entity, table_entry=object_entries),
    st.builds(
        lambda p, m, a: p4runtime_pb2.Entity(
            action_profile_member={"action_profile_id": p, "member_id": m, "action": a}
        ),
        mostly(*OBJECT_IDS),
        few,
        plain_actions,
    ),
    st.builds(
        lambda p, g, members: p4runtime_pb2.Entity(
            action_profile_group={
                "action_profile_id": p,
                "group_id": g,
                "members": [{"member_id": m, "weight": w} for m, w in members],
            }
        ),
        mostly(*OBJECT_IDS),
        few,
        st.lists(st.tuples(few, int32), max_size=3),
    ),
    st.builds(
        lambda i, index, config: p4runtime_pb2.Entity(
            meter_entry={"meter_id": i, "index": index, "config": config}
        ),
        mostly(*OBJECT_IDS),
        st.one_of(st.none(), indices),
        meter_configs,
    ),
    st.builds(
        lambda entry, config: p4runtime_pb2.Entity(
            direct_meter_entry={"table_entry": entry, "config": config}
        ),
        object_entries,
        meter_configs,
    ),
    st.builds(
        lambda number, replicas, length: p4runtime_pb2.Entity(
            packet_replication_engine_entry={
                "clone_session_entry": {
                    "session_id": number,
                    "replicas": [{"egress_port": port, "instance": rid} for port, rid in replicas],
                    "packet_length_bytes": length,
                }
            }
        ),
        mostly(0, 1, 2, 32767, 32768),
        st.lists(st.tuples(mostly(0, 1, 512), mostly(0, 1)), max_size=3),
        int32,
    ),
    st.builds(
        lambda i, values: p4runtime_pb2.Entity(
            value_set_entry={
                "value_set_id": i,
                "members": [{"match": [{"field_id": 1, "exact": {"value": v}}]} for v in values],
            }
        ),
        mostly(*OBJECT_IDS),
        st.lists(small_bytes, max_size=3),
    ),
    st.builds(
        lambda i, timeout, size: p4runtime_pb2.Entity(
            digest_entry={"digest_id": i, "config": {"max_timeout_ns": timeout, "max_list_size": size}}
        ),
        mostly(*OBJECT_IDS),
        int64,
        int32,
    ),
)
object_updates = st.builds(Update, type=st.sampled_from([1, 1, 1, 2, 2, 3]), entity=object_entities)

updates = st.builds(Update, type=st.sampled_from([0, 1, 1, 1, 2, 2, 3]), entity=entities)


def state(target: Target) -> set[bytes]:
    """Everything that a controller can read, in no order."""
    requests = [p4runtime_pb2.Entity() for _ in range(12)]
    requests[0].table_entry.counter_data.SetInParent()
    requests[1].table_entry.is_default_action = True
    requests[2].packet_replication_engine_entry.multicast_group_entry.SetInParent()
    requests[3].counter_entry.SetInParent()
    requests[4].register_entry.SetInParent()
    requests[5].action_profile_member.SetInParent()
    requests[6].action_profile_group.SetInParent()
    requests[7].meter_entry.SetInParent()
    requests[8].direct_meter_entry.SetInParent()
    requests[9].packet_replication_engine_entry.clone_session_entry.SetInParent()
    requests[10].value_set_entry.SetInParent()
    requests[11].digest_entry.SetInParent()
    return {
        found.SerializeToString(deterministic=True)
        for request in requests
        for found in read_entities(target, request)
    }


def read_all(target: Target, wanted: p4runtime_pb2.Entity) -> list[p4runtime_pb2.Entity]:
    return list(read_entities(target, wanted))


def refusal(call: Callable[[], object]) -> RequestError | None:
    """The RequestError that a call ended with; None where it succeeded."""
    try:
        call()
    except RequestError as error:
        return error
    return None


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(updates, min_size=1, max_size=8))
def test_a_refused_update_changes_nothing_and_every_update_gets_an_answer(batch: list[Update]) -> None:
    with Switch.from_p4(SMALL_P4) as program:
        apply_all(program, batch)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(object_updates, min_size=1, max_size=12))
def test_refused_updates_of_the_other_objects_change_nothing(batch: list[Update]) -> None:
    with Switch.from_p4(OBJECTS_P4) as program:
        apply_all(program, batch)
        # The program still runs.
        program.process(1, b"\x02\0\0\0\0\x01" * 2 + b"\x08\0")


def apply_all(program: Switch, batch: list[Update]) -> None:
    target = Target(program, p4runtime_pb2.ForwardingPipelineConfig())
    for update in batch:
        before = state(target)
        error = attempt(target, update)
        if error is not None:
            assert error.code in ANSWERS, error
            assert state(target) == before


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(object_updates, max_size=6), st.lists(object_updates, max_size=8))
def test_a_batch_that_is_rolled_back_leaves_nothing(before: list[Update], batch: list[Update]) -> None:
    with Switch.from_p4(OBJECTS_P4) as program:
        target = Target(program, p4runtime_pb2.ForwardingPipelineConfig())
        for update in before:
            attempt(target, update)
        was = state(target)
        request = p4runtime_pb2.WriteRequest(updates=batch)
        errors = write_all_or_none(target, WriteBatch(request.SerializeToString()), attempt)
        if any(errors):
            assert len([e for e in errors if e is not None and e.code != Code.ABORTED]) == 1
            assert state(target) == was


def attempt(target: Target, update: Update) -> RequestError | None:
    return refusal(partial(apply_update, target, update))


@settings(max_examples=150)
@given(entities)
def test_every_read_gets_entities_or_an_error(wanted: p4runtime_pb2.Entity) -> None:
    with Switch.from_p4(SMALL_P4) as program:
        target = Target(program, p4runtime_pb2.ForwardingPipelineConfig())
        error = refusal(partial(read_all, target, wanted))
        assert error is None or error.code in ANSWERS


# --- messages of any shape


@st.composite
def any_message(draw: st.DrawFn, kind: type[Message], depth: int = 6) -> Message:
    """A message with any of its fields, in any combination; ids are often ids of OBJECTS_P4."""
    message = kind()
    chosen = {draw(st.sampled_from(oneof.fields)).name for oneof in kind.DESCRIPTOR.oneofs}
    for field in kind.DESCRIPTOR.fields:
        is_left_out = field.containing_oneof is not None and field.name not in chosen
        if is_left_out or depth == 0 or draw(st.integers(0, 4)) == 0:
            continue
        is_list = field.label == field.LABEL_REPEATED
        values = [draw(any_value(field, depth)) for _ in range(draw(st.integers(0, 2)) if is_list else 1)]
        if field.message_type is not None:
            message.MergeFrom(kind(**{field.name: values if is_list else values[0]}))
        elif is_list:
            getattr(message, field.name).extend(values)
        else:
            setattr(message, field.name, values[0])
    return message


def any_value(field: FieldDescriptor, depth: int) -> st.SearchStrategy[object]:
    if field.message_type is not None:
        return any_message(field.message_type._concrete_class, depth - 1)
    if field.type == field.TYPE_BYTES:
        return small_bytes
    return SCALARS[field.cpp_type]


_KNOWN = [*OBJECT_IDS, *OBJECT_ACTIONS, *(table.preamble.id for table in OBJECT_INFO.tables), 0, 1, 2]
SCALARS = {
    FieldDescriptor.CPPTYPE_UINT32: mostly(*_KNOWN),
    FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_INT32: int32,
    FieldDescriptor.CPPTYPE_INT64: int64,
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(),
    FieldDescriptor.CPPTYPE_STRING: st.sampled_from(["", "x"]),
    FieldDescriptor.CPPTYPE_ENUM: st.integers(0, 5),
}


def answered(call: Callable[[], object]) -> bool:
    """Whether the call was refused. Fails unless the error is one that the client can cause."""
    error = refusal(call)
    assert error is None or error.code in ANSWERS, error
    return error is not None


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(any_message(p4runtime_pb2.Entity), max_size=4), st.sampled_from([1, 1, 2, 3]))
def test_entities_of_any_shape_are_read_and_written_or_refused(
    given_entities: list[p4runtime_pb2.Entity], kind: int
) -> None:
    with Switch.from_p4(OBJECTS_P4) as program:
        target = Target(program, p4runtime_pb2.ForwardingPipelineConfig())
        for entity in given_entities:
            answered(partial(read_all, target, entity))
            before = state(target)
            if answered(partial(apply_update, target, Update(type=kind, entity=entity))):
                assert state(target) == before


@settings(max_examples=200)
@given(
    st.lists(any_message(p4runtime_pb2.MasterArbitrationUpdate), max_size=4),
    any_message(p4runtime_pb2.PacketOut),
    any_message(p4runtime_pb2.DigestListAck),
)
def test_stream_messages_of_any_shape_are_answered(
    updates: list[p4runtime_pb2.MasterArbitrationUpdate],
    packet: p4runtime_pb2.PacketOut,
    ack: p4runtime_pb2.DigestListAck,
) -> None:
    arbitration = Arbitration(1)
    for update in updates:
        answered(partial(arbitration.update, Session(), update))
    header = ControllerHeader("packet_out", (Field(1, "port", 9, 9), Field(2, "pad", 7, 7)))
    answered(partial(packet_out, header, packet))
    answered(lambda: Digests([Digest(OBJECT_IDS[-1], "d", "struct", (16,))]).acknowledge(ack))
