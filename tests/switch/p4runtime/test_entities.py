# SPDX-License-Identifier: Apache-2.0
"""Writes and reads of entities over real gRPC: batches, errors of elements, wildcards. Refusals change nothing."""

import time

import pytest
from p4.v1 import p4runtime_pb2

from inagg_switch import Switch
from inagg_switch.compiler.parse.preprocess import preprocess_text
from inagg_switch.p4runtime.entities.replication import parse_replicas
from inagg_switch.p4runtime.errors import (
    MAX_ERROR_TEXT,
    MAX_STATUS_BYTES,
    BatchError,
    Code,
    RequestError,
)
from tests.switch.p4runtime.client import (
    Connect,
    Controller,
    Update,
    action_id,
    admission_entry,
    all_entries,
    arp_entry,
    batch_codes,
    counter,
    delete,
    group,
    insert,
    modify,
    table_id,
)
from tests.switch.snippets import v1program


def test_an_entry_is_inserted_modified_read_and_deleted(configured: Controller, inagg: Switch) -> None:
    configured.write(insert(arp_entry(inagg, 1, mac=0x11)))
    assert configured.read(all_entries()) == [arp_entry(inagg, 1, mac=0x11)]
    configured.write(modify(arp_entry(inagg, 1, mac=0x22)))
    assert configured.read(all_entries()) == [arp_entry(inagg, 1, mac=0x22)]
    configured.write(delete(arp_entry(inagg, 1)))
    assert configured.read(all_entries()) == []


def test_a_batch_goes_on_after_an_error_and_says_which_failed(configured: Controller, inagg: Switch) -> None:
    malformed = arp_entry(inagg, 3)
    malformed.table_entry.match[0].exact.value = b"\x01\x00\x00\x00\x00"
    batch = [
        insert(arp_entry(inagg, 1)),
        insert(arp_entry(inagg, 1)),
        insert(malformed),
        modify(arp_entry(inagg, 9)),
        delete(arp_entry(inagg, 9)),
        Update(type=Update.INSERT),
        Update(entity=arp_entry(inagg, 4)),
        insert(arp_entry(inagg, 2)),
    ]
    assert [code for code, _ in batch_codes(configured.write, *batch)] == [
        Code.OK,
        Code.ALREADY_EXISTS,
        Code.INVALID_ARGUMENT,
        Code.NOT_FOUND,
        Code.NOT_FOUND,
        Code.INVALID_ARGUMENT,
        Code.INVALID_ARGUMENT,
        Code.OK,
    ]
    entries = {bytes(entity.table_entry.match[0].exact.value) for entity in configured.read(all_entries())}
    assert entries == {b"\x01", b"\x02"}


@pytest.mark.parametrize("count", [100, 200, 300])
def test_a_large_batch_gets_the_code_of_every_update(
    configured: Controller, inagg: Switch, count: int
) -> None:
    batch = [delete(arp_entry(inagg, 1 + number)) for number in range(count)]
    batch[7] = insert(arp_entry(inagg, 8))
    for _ in range(5):  # a client accepts metadata somewhat above its limit with some probability
        codes = [code for code, _ in batch_codes(configured.write, *batch)]
        assert codes == [Code.NOT_FOUND] * 7 + [Code.OK] + [Code.NOT_FOUND] * (count - 8)
        configured.write(delete(arp_entry(inagg, 8)))


def test_a_client_that_takes_more_metadata_gets_the_codes_of_any_batch(
    address: str, configured: Controller, connect: Connect, inagg: Switch
) -> None:
    """Specification, "gRPC Metadata Maximum Size"."""
    large = connect(address, 2, max_metadata_size=1 << 20, absolute_max_metadata_size=1 << 20)
    large.arbitrate()
    assert large.next().arbitration.status.code == Code.OK
    batch = [delete(arp_entry(inagg, 1 + number)) for number in range(5000)]
    assert [code for code, _ in batch_codes(large.write, *batch)] == [Code.NOT_FOUND] * 5000


@pytest.mark.parametrize(
    ("count", "at_least"), [(1, MAX_ERROR_TEXT), (10, MAX_ERROR_TEXT), (60, 40), (200, 10), (300, 0)]
)
def test_the_errors_of_a_batch_share_the_room_for_their_texts(count: int, at_least: int) -> None:
    text = "x" * 2 * MAX_ERROR_TEXT
    status = BatchError("updates", [RequestError(Code.NOT_FOUND, text)] * count).status()
    assert status.ByteSize() <= MAX_STATUS_BYTES
    assert len(status.details) == count
    for packed in status.details:
        error = p4runtime_pb2.Error()
        assert packed.Unpack(error)
        assert error.canonical_code == Code.NOT_FOUND
        assert at_least <= len(error.message) <= MAX_ERROR_TEXT


def test_a_full_table_is_exhausted(configured: Controller, inagg: Switch) -> None:
    size = next(t.size for t in inagg.p4info.tables if t.preamble.name.endswith("arp_responder"))
    configured.write(*(insert(arp_entry(inagg, ip)) for ip in range(1, size + 1)))
    ((code, _),) = batch_codes(configured.write, insert(arp_entry(inagg, size + 1)))
    assert code == Code.RESOURCE_EXHAUSTED
    assert len(configured.read(all_entries())) == size


def test_a_const_default_action_cannot_be_modified(configured: Controller, inagg: Switch) -> None:
    entity = p4runtime_pb2.Entity()
    entity.table_entry.table_id = table_id(inagg, "admission")
    entity.table_entry.is_default_action = True
    ((code, _),) = batch_codes(configured.write, modify(entity))
    assert code == Code.PERMISSION_DENIED


def test_a_default_action_is_modified_and_reset(primary: Controller, small: Switch) -> None:
    primary.configure(small)
    entity = p4runtime_pb2.Entity()
    entity.table_entry.table_id = table_id(small, "forward")
    entity.table_entry.is_default_action = True
    (original,) = primary.read(entity)
    changed = p4runtime_pb2.Entity()
    changed.CopyFrom(entity)
    changed.table_entry.action.action.action_id = action_id(small, "send")
    changed.table_entry.action.action.params.add(param_id=1, value=b"\x03")
    primary.write(modify(changed))
    assert primary.read(entity) == [changed]
    primary.write(modify(entity))
    assert primary.read(entity) == [original]
    for update in (insert(changed), delete(changed)):
        ((code, _),) = batch_codes(primary.write, update)
        assert code == Code.INVALID_ARGUMENT


def test_a_table_without_keys_has_only_its_default_entry(primary: Controller) -> None:
    source = v1program(
        "t.apply();",
        locals="action send(bit<9> port) { sm.egress_spec = port; }"
        " table t { actions = { send; NoAction; } default_action = NoAction; }",
    )
    with Switch.from_source(preprocess_text(source).text) as program:
        primary.configure(program)
        entity = p4runtime_pb2.Entity()
        entity.table_entry.table_id = table_id(program, "t")
        entity.table_entry.action.action.action_id = action_id(program, "send")
        entity.table_entry.action.action.params.add(param_id=1, value=b"\x02")
        ordered, matched = p4runtime_pb2.Entity(), p4runtime_pb2.Entity()
        ordered.CopyFrom(entity)
        ordered.table_entry.priority = 1
        matched.CopyFrom(entity)
        matched.table_entry.match.add(field_id=1).exact.value = b"\x01"
        refused = [
            insert(entity),
            insert(entity),
            insert(ordered),
            insert(matched),
            modify(entity),
            delete(entity),
        ]
        answers = batch_codes(primary.write, *refused)
        assert [code for code, _ in answers] == 4 * [Code.INVALID_ARGUMENT] + 2 * [Code.NOT_FOUND]
        assert answers[0][1] == "table I.t has no key: modify its default entry, which is its only entry"
        assert primary.read(all_entries()) == []

        entity.table_entry.is_default_action = True
        primary.write(modify(entity))
        assert primary.read(entity) == [entity]


def test_a_batch_with_rollback_applies_all_updates_or_none(configured: Controller, inagg: Switch) -> None:
    rollback = p4runtime_pb2.WriteRequest.ROLLBACK_ON_ERROR
    first, second, other = arp_entry(inagg, 1), arp_entry(inagg, 2), arp_entry(inagg, 1, mac=0x0300)
    configured.write(insert(first), insert(second), atomicity=rollback)
    batch = [modify(other), delete(second), insert(arp_entry(inagg, 3)), insert(first), delete(first)]
    codes = [code for code, _ in batch_codes(lambda: configured.write(*batch, atomicity=rollback))]
    assert codes == [Code.ABORTED] * 3 + [Code.ALREADY_EXISTS, Code.ABORTED]
    found = configured.read(all_entries())
    assert len(found) == 2
    assert first in found
    assert second in found
    configured.write(*batch[:3], atomicity=rollback)
    assert other in configured.read(all_entries())


def test_an_entity_that_the_switch_lacks_is_unimplemented_and_named(configured: Controller) -> None:
    entity = p4runtime_pb2.Entity()
    entity.extern_entry.SetInParent()
    for call, argument in ((configured.write, insert(entity)), (configured.read, entity)):
        ((code, message),) = batch_codes(call, argument)
        assert code == Code.UNIMPLEMENTED
        assert "extern_entry" in message


@pytest.mark.parametrize(
    "kind",
    [
        "action_profile_member",
        "action_profile_group",
        "meter_entry",
        "direct_meter_entry",
        "value_set_entry",
        "digest_entry",
    ],
)
def test_an_entity_that_the_program_lacks_reads_as_nothing_and_cannot_be_written(
    configured: Controller, kind: str
) -> None:
    entity = p4runtime_pb2.Entity()
    getattr(entity, kind).SetInParent()
    assert configured.read(entity) == []
    ((code, _),) = batch_codes(configured.write, insert(entity))
    assert code == Code.INVALID_ARGUMENT


def test_a_table_read_selects_by_match_action_and_metadata(configured: Controller, inagg: Switch) -> None:
    first, second = arp_entry(inagg, 1), arp_entry(inagg, 2)
    second.table_entry.metadata = b"second"
    configured.write(insert(first), insert(second))
    by_match = p4runtime_pb2.Entity()
    by_match.table_entry.table_id = first.table_entry.table_id
    by_match.table_entry.match.extend(first.table_entry.match)
    assert configured.read(by_match) == [first]
    by_metadata = p4runtime_pb2.Entity()
    by_metadata.table_entry.table_id = first.table_entry.table_id
    by_metadata.table_entry.metadata = b"second"
    assert configured.read(by_metadata) == [second]
    by_action = p4runtime_pb2.Entity()
    by_action.table_entry.table_id = first.table_entry.table_id
    by_action.table_entry.action.action.action_id = action_id(inagg, "admit")
    assert configured.read(by_action) == []


def test_the_other_reads_are_answered_when_one_fails(configured: Controller, inagg: Switch) -> None:
    configured.write(insert(arp_entry(inagg, 1)))
    unknown = p4runtime_pb2.Entity()
    unknown.counter_entry.counter_id = 12345
    request = p4runtime_pb2.ReadRequest(device_id=1, entities=[unknown, all_entries()])
    answered: list[p4runtime_pb2.Entity] = []

    def read() -> None:
        for response in configured.stub.Read(request):
            answered.extend(response.entities)

    assert [code for code, _ in batch_codes(read)] == [Code.INVALID_ARGUMENT, Code.OK]
    assert answered == [arp_entry(inagg, 1)]


# Counters, direct counters, registers


def test_counters_are_written_and_read_by_index_and_as_a_whole(configured: Controller, inagg: Switch) -> None:
    configured.write(modify(counter(inagg, "started", 5, (3, 400))))
    assert configured.read(counter(inagg, "started", 5)) == [counter(inagg, "started", 5, (3, 400))]
    values = configured.read(counter(inagg, "started"))
    assert len(values) == 512
    assert sum(entity.counter_entry.data.packet_count for entity in values) == 3
    configured.write(modify(counter(inagg, "started", None, (1, 2))))
    assert (
        sum(entity.counter_entry.data.packet_count for entity in configured.read(counter(inagg, "started")))
        == 512
    )
    everything = p4runtime_pb2.Entity()
    everything.counter_entry.SetInParent()
    assert len(configured.read(everything)) == sum(c.size for c in inagg.p4info.counters)


@pytest.mark.parametrize(("index", "code"), [(-1, Code.INVALID_ARGUMENT), (512, Code.OUT_OF_RANGE)])
def test_a_counter_index_outside_the_array_is_refused(
    configured: Controller, inagg: Switch, index: int, code: Code
) -> None:
    entity = counter(inagg, "started", index, (1, 1))
    assert [c for c, _ in batch_codes(configured.write, modify(entity))] == [code]
    assert [c for c, _ in batch_codes(configured.read, entity)] == [code]


def test_counters_cannot_be_inserted_or_deleted_or_negative(configured: Controller, inagg: Switch) -> None:
    negative = counter(inagg, "started", 1, (-1, 0))
    plain = counter(inagg, "started", 1, (1, 1))
    codes = batch_codes(configured.write, insert(plain), delete(plain), modify(negative))
    assert [code for code, _ in codes] == [Code.INVALID_ARGUMENT] * 3


def test_direct_counters_are_read_with_their_entry_and_without_it(
    configured: Controller, inagg: Switch
) -> None:
    entry = admission_entry(inagg, 1)
    entry.table_entry.counter_data.packet_count = 4
    entry.table_entry.counter_data.byte_count = 500
    configured.write(insert(entry), insert(admission_entry(inagg, 2)))

    wanted = p4runtime_pb2.Entity()
    wanted.table_entry.table_id = entry.table_entry.table_id
    wanted.table_entry.match.extend(entry.table_entry.match)
    assert not configured.read(wanted)[0].table_entry.HasField("counter_data")
    wanted.table_entry.counter_data.SetInParent()
    assert configured.read(wanted) == [entry]

    direct = p4runtime_pb2.Entity()
    direct.direct_counter_entry.table_entry.table_id = entry.table_entry.table_id
    assert len(configured.read(direct)) == 2
    direct.direct_counter_entry.table_entry.match.extend(entry.table_entry.match)
    (found,) = configured.read(direct)
    assert found.direct_counter_entry.data.packet_count == 4

    direct.direct_counter_entry.data.packet_count = 9
    configured.write(modify(direct))
    assert configured.read(wanted)[0].table_entry.counter_data.packet_count == 9
    configured.write(delete(entry))
    assert [code for code, _ in batch_codes(configured.read, direct)] == [Code.NOT_FOUND]


def test_modifying_an_entry_keeps_its_counter_unless_it_is_given(
    configured: Controller, inagg: Switch
) -> None:
    entry = admission_entry(inagg, 1)
    entry.table_entry.counter_data.packet_count = 4
    configured.write(insert(entry))
    entry.table_entry.ClearField("counter_data")
    configured.write(modify(entry))
    entry.table_entry.counter_data.SetInParent()
    (found,) = configured.read(entry)
    assert found.table_entry.counter_data.packet_count == 4


def test_a_table_without_a_direct_counter_takes_no_counter_data(
    configured: Controller, inagg: Switch
) -> None:
    entity = arp_entry(inagg, 1)
    entity.table_entry.counter_data.packet_count = 1
    assert [code for code, _ in batch_codes(configured.write, insert(entity))] == [Code.INVALID_ARGUMENT]
    assert configured.read(all_entries()) == []


def test_registers_are_written_and_read(configured: Controller, inagg: Switch) -> None:
    entity = p4runtime_pb2.Entity()
    entity.register_entry.register_id = next(
        r.preamble.id for r in inagg.p4info.registers if r.preamble.name.endswith("slot_epoch")
    )
    entity.register_entry.index.index = 7
    entity.register_entry.data.bitstring = b"\x12\x34"
    configured.write(modify(entity))
    assert configured.read(entity) == [entity]
    entity.register_entry.data.bitstring = b"\x01\x00\x00\x00\x00"
    assert [code for code, _ in batch_codes(configured.write, modify(entity))] == [Code.INVALID_ARGUMENT]


# Multicast groups


def test_groups_are_inserted_modified_read_and_deleted(configured: Controller) -> None:
    configured.write(insert(group(1, (1, 0), (2, 0))), insert(group(2, (3, 4))))
    assert configured.read(group(0)) == [group(1, (1, 0), (2, 0)), group(2, (3, 4))]
    configured.write(modify(group(1, (2, 0))))
    assert configured.read(group(1)) == [group(1, (2, 0))]
    configured.write(delete(group(1)))
    assert configured.read(group(0)) == [group(2, (3, 4))]
    assert configured.read(group(1)) == []


def test_a_group_may_be_empty(configured: Controller) -> None:
    configured.write(insert(group(1)))
    assert configured.read(group(1)) == [group(1)]
    configured.write(modify(group(1, (1, 0))))
    configured.write(modify(group(1)))
    configured.write(delete(group(1)))
    assert configured.read(group(0)) == []


def test_a_large_group_is_parsed_in_linear_time() -> None:
    # Quadratic time would be minutes.
    replicas = [p4runtime_pb2.Replica(egress_port=1 + i % 500, instance=i // 500) for i in range(50_000)]
    started = time.process_time()
    parsed = parse_replicas(replicas, "multicast group 1")
    assert time.process_time() - started < 5
    assert parsed == [(1 + i % 500, i // 500) for i in range(50_000)]
    with pytest.raises(RequestError, match="given twice"):
        parse_replicas([*replicas, replicas[0]], "multicast group 1")


def test_malformed_group_writes_change_nothing(configured: Controller) -> None:
    configured.write(insert(group(1, (1, 0))))
    codes = batch_codes(
        configured.write,
        insert(group(0, (1, 0))),
        insert(group(70000, (1, 0))),
        insert(group(1, (2, 0))),
        modify(group(2, (1, 0))),
        delete(group(2)),
        modify(group(1, (512, 0))),
        modify(group(1, (1, 70000))),
        modify(group(1, (1, 1), (1, 1))),
    )
    assert [code for code, _ in codes] == [
        Code.INVALID_ARGUMENT,
        Code.OUT_OF_RANGE,
        Code.ALREADY_EXISTS,
        Code.NOT_FOUND,
        Code.NOT_FOUND,
        Code.INVALID_ARGUMENT,
        Code.INVALID_ARGUMENT,
        Code.INVALID_ARGUMENT,
    ]
    assert configured.read(group(0)) == [group(1, (1, 0))]


# Every kind of match, and const entries: written to the program and read back


def ordered_entry(program: Switch) -> p4runtime_pb2.Entity:
    entity = p4runtime_pb2.Entity()
    entry = entity.table_entry
    entry.table_id = table_id(program, "ordered")
    entry.priority = 5
    entry.match.add(field_id=1, lpm={"value": b"\x02\x00\x00\x00\x00\x00", "prefix_len": 8})
    entry.match.add(field_id=2, ternary={"value": b"\x08\x00", "mask": b"\xff\x00"})
    entry.match.add(field_id=3, range={"low": b"\x01", "high": b"\x01\x00"})
    entry.match.add(field_id=4, optional={"value": b"\x09"})
    entry.action.action.action_id = action_id(program, "mark")
    entry.action.action.params.add(param_id=1, value=b"\x0a\xbc")
    return entity


def test_every_kind_of_match_is_read_back_as_written(primary: Controller, small: Switch) -> None:
    primary.configure(small)
    full, any_packet = ordered_entry(small), ordered_entry(small)
    del any_packet.table_entry.match[:]
    primary.write(insert(full), insert(any_packet))
    found = primary.read(all_entries())
    assert full in found
    assert any_packet in found
    primary.write(delete(full))
    assert full not in primary.read(all_entries())


def test_entries_that_differ_only_in_priority_are_different_entries(
    primary: Controller, small: Switch
) -> None:
    primary.configure(small)
    low, high = ordered_entry(small), ordered_entry(small)
    high.table_entry.priority = 6
    primary.write(insert(low), insert(high))
    wanted = p4runtime_pb2.Entity()
    wanted.table_entry.table_id = low.table_entry.table_id
    wanted.table_entry.priority = 6
    assert primary.read(wanted) == [high]


def test_const_entries_are_shown_and_cannot_be_changed(primary: Controller, small: Switch) -> None:
    primary.configure(small)
    wanted = p4runtime_pb2.Entity()
    wanted.table_entry.table_id = table_id(small, "fixed")
    first, second = primary.read(wanted)
    assert first.table_entry.is_const
    assert second.table_entry.is_const
    first.table_entry.is_const = False
    new = p4runtime_pb2.Entity()
    new.CopyFrom(first)
    new.table_entry.match[0].exact.value = b"\x77"
    codes = batch_codes(primary.write, insert(new), modify(first), delete(first))
    assert [code for code, _ in codes] == [Code.PERMISSION_DENIED] * 3
    assert len(primary.read(wanted)) == 2
