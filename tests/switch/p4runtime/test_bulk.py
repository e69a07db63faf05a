# SPDX-License-Identifier: Apache-2.0
"""Table entries in batches: native code gives the same answers as the code for one entry, and a rollback leaves no
change."""

import threading
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest
from google.protobuf.message import DecodeError
from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.batch import WriteBatch, write_each
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.errors import Code, RequestError
from inagg_switch.p4runtime.read import read, read_entities
from inagg_switch.p4runtime.rollback import write_all_or_none
from inagg_switch.p4runtime.server import SwitchServer
from inagg_switch.p4runtime.write import apply_update
from inagg_switch.ports import Ports
from inagg_switch.switch import Switch
from tests.switch.p4runtime.client import (
    SMALL_P4,
    Connect,
    Update,
    batch_codes,
    delete,
    insert,
    modify,
    table_id,
)

INSERT = Update.INSERT
PROGRAM = Switch.from_p4(SMALL_P4)
TABLES = {t.preamble.name.rpartition(".")[2]: t for t in PROGRAM.p4info.tables}
ACTIONS = {a.preamble.alias: a.preamble.id for a in PROGRAM.p4info.actions}


def number(rng: Random, bits: int) -> bytes:
    """A binary string, mostly one that fits `bits`. Some have leading zeros, some are empty."""
    value = rng.choice([rng.randrange(3), rng.randrange(1 << bits)])
    digits = value.to_bytes((value.bit_length() + 7) // 8 or 1, "big")
    return rng.choices([digits, b"\0" + digits, rng.randbytes(rng.randrange(8))], [10, 2, 1])[0]


def matching(rng: Random, field_id: int, kind: str, bits: int) -> p4runtime_pb2.FieldMatch:
    match = p4runtime_pb2.FieldMatch(field_id=rng.choices([field_id, 5], [30, 1])[0])
    inner = getattr(match, kind)
    if kind == "range":
        inner.low, inner.high = number(rng, bits), rng.choice([b"\x01\xff", number(rng, bits)])
        return match
    inner.value = number(rng, bits)
    if kind == "lpm":
        inner.prefix_len = rng.choices([bits, 8, 0, bits + 1, -1], [20, 4, 1, 1, 1])[0]
    elif kind == "ternary":
        inner.mask = rng.choice([b"\xff" * 2, number(rng, bits)])
    return match


# Widths of the parameters of each action.
PARAMETERS = {"send": (9,), "send_to": (32,), "drop": (), "send_named": (9,), "mark": (12,), "skip": ()}


def acting(rng: Random, out: p4runtime_pb2.TableEntry, action: str) -> None:
    """Sets the action of `out`, mostly with its parameters."""
    out.action.action.action_id = ACTIONS[action]
    for param, width in enumerate(PARAMETERS[action], 1):
        given = rng.choices([param, 7], [30, 1])[0]
        out.action.action.params.add(param_id=given, value=number(rng, width))


def random_entry(rng: Random) -> p4runtime_pb2.TableEntry:
    """Mostly an entry that its table accepts, often one that is in the table already."""
    name = rng.choice(["forward", "ordered", "ordered", "fixed"])
    entry = p4runtime_pb2.TableEntry(table_id=TABLES[name].preamble.id)
    if name == "ordered":
        fields = [(1, "lpm", 48), (2, "ternary", 16), (3, "range", 9), (4, "optional", 48)]
        entry.match.extend(matching(rng, *field) for field in fields if rng.random() < 0.3)
        entry.priority = rng.choices([1, 2, 0, -1], [20, 5, 1, 1])[0]
        if rng.random() < 0.9:
            acting(rng, entry, rng.choices(["mark", "skip"], [9, 1])[0])
    else:
        entry.match.append(matching(rng, 1, "exact", 48 if name == "forward" else 16))
        entry.priority = rng.choices([0, 1], [20, 1])[0]
        acting(rng, entry, rng.choice(["send", "send_to", "drop", "send_named", "mark"]))
    if rng.random() < 0.1:
        entry.counter_data.packet_count = rng.randrange(3)
    if rng.random() < 0.05:
        entry.metadata = b"x"
    return entry


def random_updates(rng: Random) -> list[Update]:
    return [
        Update(type=rng.choices([1, 2, 3, 0], [20, 8, 8, 1])[0], entity={"table_entry": random_entry(rng)})
        for _ in range(rng.randrange(1, 30))
    ]


def target_of(program: Switch) -> Target:
    return Target(program, p4runtime_pb2.ForwardingPipelineConfig())


def batch_of(given_updates: Iterable[Update]) -> WriteBatch:
    return WriteBatch(p4runtime_pb2.WriteRequest(updates=given_updates).SerializeToString())


def attempt(target: Target, update: Update) -> RequestError | None:
    try:
        apply_update(target, update)
    except RequestError as error:
        return error
    return None


def shown(target: Target) -> list[str]:
    """All entries, as the code for one entry reads them."""
    everything = p4runtime_pb2.Entity()
    everything.table_entry.counter_data.SetInParent()
    return sorted(str(entity) for entity in read_entities(target, everything))


@pytest.mark.parametrize("seed", range(40))
def test_a_batch_has_the_answers_and_effects_of_its_updates_one_by_one(seed: int) -> None:
    given_updates = random_updates(Random(seed))
    with Switch.from_p4(SMALL_P4) as one, Switch.from_p4(SMALL_P4) as other:
        singly, together = target_of(one), target_of(other)
        expected = [attempt(singly, update) for update in given_updates]
        errors = write_each(together, batch_of(given_updates), attempt)
        assert list(map(str, errors)) == list(map(str, expected))
        assert shown(together) == shown(singly)
        wanted = [
            p4runtime_pb2.Entity(table_entry={"counter_data": {}}),
            p4runtime_pb2.Entity(table_entry={}),
        ]
        for request in wanted:
            responses = read(together, [request]).responses
            parts = map(p4runtime_pb2.ReadResponse.FromString, responses)
            found = sorted(str(entity) for part in parts for entity in part.entities)
            assert found == sorted(map(str, read_entities(together, request)))


@pytest.mark.parametrize("seed", range(40))
def test_a_batch_that_is_rolled_back_leaves_the_entries_as_they_were(seed: int) -> None:
    rng = Random(seed)
    with Switch.from_p4(SMALL_P4) as program:
        target = target_of(program)
        write_each(target, batch_of(random_updates(rng)), attempt)
        was = shown(target)
        good = [u for u in random_updates(rng) if u.type == INSERT]
        errors = write_all_or_none(target, batch_of([*good, *random_updates(rng)]), attempt)
        if any(errors):
            assert len([e for e in errors if e is not None and e.code != Code.ABORTED]) == 1
            assert shown(target) == was


@pytest.mark.parametrize("seed", range(200))
def test_damaged_bytes_are_parsed_as_protobuf_parses_them(seed: int) -> None:
    rng = Random(seed)
    given_updates = random_updates(rng)[:4]
    message = bytearray(p4runtime_pb2.WriteRequest(device_id=7, updates=given_updates).SerializeToString())
    for _ in range(rng.randrange(4)):
        message[rng.randrange(len(message))] = rng.randrange(256)
    cut = bytes(message[: rng.choice([len(message), len(message), len(message) // 2])])
    try:
        expected = p4runtime_pb2.WriteRequest.FromString(cut)
    except DecodeError:
        with pytest.raises(RequestError) as refused:
            WriteBatch(cut).check()
        assert refused.value.code == Code.INVALID_ARGUMENT
        return
    batch = WriteBatch(cut)
    assert [batch.update(place) for place in range(len(batch))] == list(expected.updates)
    assert batch.request.device_id == expected.device_id


def hits(program: Switch, value: int, priority: int = 1) -> p4runtime_pb2.Entity:
    """An entry of `ordered` for packets to `value`; with 0 for all packets."""
    entity = p4runtime_pb2.Entity()
    entry = entity.table_entry
    entry.table_id, entry.priority = table_id(program, "ordered"), priority
    if value:
        entry.match.add(field_id=4).optional.value = bytes([value])
    entry.action.action.action_id = ACTIONS["mark"]
    entry.action.action.params.add(param_id=1, value=bytes([value]))
    return entity


def frame(to: int) -> bytes:
    return to.to_bytes(6, "big") + bytes(6) + b"\x99\x99"


def test_packets_that_are_counted_during_a_batch_stay_counted_when_it_is_rolled_back() -> None:
    small = Switch.from_p4(SMALL_P4)
    target = target_of(small)
    write_each(target, batch_of([insert(hits(small, 0)), insert(hits(small, 2))]), attempt)

    def count_and_fail(target: Target, update: Update) -> RequestError | None:
        error = attempt(target, update)
        if error is None:
            small.process(1, frame(0))
        return error

    changed = [modify(hits(small, 0)), delete(hits(small, 2)), delete(hits(small, 9))]
    errors = write_all_or_none(target, batch_of(changed), count_and_fail)
    assert [error.code for error in errors if error] == [Code.ABORTED, Code.ABORTED, Code.NOT_FOUND]
    assert small.direct_counter("ordered", {}, priority=1)[0] == 4  # two updates done, two undone
    # Deleting the entry that matches everything deletes only that entry.
    write_each(target, batch_of([insert(hits(small, 3))]), attempt)
    assert not any(write_all_or_none(target, batch_of([delete(hits(small, 0))]), attempt))
    assert len(small.entries("ordered")) == 2


def test_an_update_that_cannot_be_undone_is_an_internal_error() -> None:
    small = Switch.from_p4(SMALL_P4)
    target = target_of(small)

    def interfere(target: Target, update: Update) -> RequestError | None:
        small.delete("ordered", {"dst": 2}, priority=1)
        return attempt(target, update)

    batch = batch_of([insert(hits(small, 1)), insert(hits(small, 2)), delete(hits(small, 9))])
    codes = [error.code for error in write_all_or_none(target, batch, interfere) if error]
    assert codes == [Code.INTERNAL, Code.INTERNAL, Code.NOT_FOUND]
    assert not small.entries("ordered")


def test_packets_see_all_of_an_atomic_batch_or_nothing(tmp_path: Path, connect: Connect) -> None:
    """Two tables act on a packet, on its port and on a register. Each batch changes both; no packet sees only one."""
    address = f"unix:{tmp_path}/s.sock"
    server = SwitchServer(Ports([]), device_id=1, address=address)
    server.load(PROGRAM)
    server.start()
    controller = connect(address)
    controller.arbitrate()
    controller.next()

    def both(value: int) -> list[p4runtime_pb2.Entity]:
        sent = p4runtime_pb2.Entity()
        entry = sent.table_entry
        entry.table_id = TABLES["forward"].preamble.id
        entry.match.add(field_id=1).exact.value = b"\x02"
        entry.action.action.action_id = ACTIONS["send"]
        entry.action.action.params.add(param_id=1, value=bytes([value]))
        marked = hits(PROGRAM, 2)
        marked.table_entry.action.action.params[0].value = bytes([value])
        return [sent, marked]

    seen = set()
    done = threading.Event()

    def send() -> None:
        while not done.is_set():
            ((port, _),) = PROGRAM.process(1, frame(2))
            seen.add((port, PROGRAM.register("cells")[0]))

    atomic = p4runtime_pb2.WriteRequest.DATAPLANE_ATOMIC
    controller.write(*map(insert, both(1)), atomicity=atomic)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        for value in range(2, 100):
            controller.write(*map(modify, both(value)), atomicity=atomic)
            failing = [*map(modify, both(200)), insert(both(value)[0])]
            errors = batch_codes(controller.write, *failing, atomicity=atomic)
            assert [code for code, _ in errors] == [Code.ABORTED, Code.ABORTED, Code.ALREADY_EXISTS]
    finally:
        done.set()
        sender.join()
        server.stop()
    assert len(seen) > 1
    assert all(port == cell for port, cell in seen)
    assert (200, 200) not in seen
