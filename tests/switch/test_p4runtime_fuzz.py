"""Whatever a controller writes, the switch answers with a status, and a refused update changes nothing."""

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from p4.v1 import p4runtime_pb2
from p4runtime_client import SMALL_P4, Update

from inagg_switch.p4runtime_errors import Code, RequestError
from inagg_switch.p4runtime_read import read_entities
from inagg_switch.p4runtime_target import Target
from inagg_switch.p4runtime_write import apply_update
from inagg_switch.switch import Switch

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
updates = st.builds(Update, type=st.sampled_from([0, 1, 1, 1, 2, 2, 3]), entity=entities)


def state(target: Target) -> set[bytes]:
    """Everything that a controller can see, whatever the order."""
    requests = [p4runtime_pb2.Entity() for _ in range(5)]
    requests[0].table_entry.counter_data.SetInParent()
    requests[1].table_entry.is_default_action = True
    requests[2].packet_replication_engine_entry.multicast_group_entry.SetInParent()
    requests[3].counter_entry.SetInParent()
    requests[4].register_entry.SetInParent()
    return {
        found.SerializeToString(deterministic=True)
        for request in requests
        for found in read_entities(target, request)
    }


def refusal(call: Callable[[], object]) -> RequestError | None:
    """The error that a call ended with, which must be one that a controller can act on."""
    try:
        call()
    except RequestError as error:
        return error
    return None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(updates, min_size=1, max_size=8))
def test_a_refused_update_changes_nothing_and_every_update_gets_an_answer(batch):
    with Switch.from_p4(SMALL_P4) as program:
        target = Target(program, p4runtime_pb2.ForwardingPipelineConfig())
        for update in batch:
            before = state(target)
            error = refusal(lambda update=update: apply_update(target, update))
            if error is not None:
                assert error.code in ANSWERS, error
                assert state(target) == before


@settings(max_examples=150, deadline=None)
@given(entities)
def test_every_read_gets_entities_or_an_answer(wanted):
    with Switch.from_p4(SMALL_P4) as program:
        target = Target(program, p4runtime_pb2.ForwardingPipelineConfig())
        error = refusal(lambda: list(read_entities(target, wanted)))
        assert error is None or error.code in ANSWERS
