# SPDX-License-Identifier: Apache-2.0
"""Messages that the switch sends without a request: digests and idle timeouts."""

import threading

import pytest
from p4.v1 import p4data_pb2, p4runtime_pb2

from inagg_switch import Switch
from inagg_switch._ports import ProgramControl
from inagg_switch.p4runtime import service
from inagg_switch.p4runtime.entities import idle
from inagg_switch.p4runtime.entities.digests import Digests
from inagg_switch.p4runtime.entities.entries import EntryTuple, Key, find_entry
from inagg_switch.p4runtime.entities.idle import expired
from inagg_switch.p4runtime.entities.names import Digest, Table
from inagg_switch.p4runtime.entities.target import Target
from inagg_switch.p4runtime.errors import Code, RequestError
from inagg_switch.p4runtime.write import apply_update
from tests.switch.p4runtime.client import Controller, Update, batch_codes, delete, insert, modify
from tests.switch.p4runtime.objects import Entity, flow, frame, learn, refused, route
from tests.waiting import wait_until

# --- digests


def test_digests_reach_the_controller_once_until_acknowledged(sw: Switch, client: Controller) -> None:
    entity = learn(sw, max_list_size=2, max_timeout_ns=10**12, ack_timeout_ns=10**12)
    sw.process(3, frame(5, src=1))  # digests are not enabled yet
    client.write(insert(entity))
    assert client.read(learn(sw)) == [entity]
    for src in (7, 7, 8):
        sw.process(3, frame(5, src=src))
    message = client.next().digest
    assert (message.digest_id, message.list_id) == (entity.digest_entry.digest_id, 1)
    values = [[m.bitstring for m in one.struct.members] for one in message.data]
    assert values == [[b"\x07", b"\x03"], [b"\x08", b"\x03"]]
    ack = p4runtime_pb2.StreamMessageRequest()
    ack.digest_ack.digest_id, ack.digest_ack.list_id = message.digest_id, 2
    client.send(ack)
    assert client.next().error.canonical_code == Code.NOT_FOUND
    ack.digest_ack.list_id = 1
    client.send(ack)
    client.write(modify(learn(sw, max_list_size=1)))
    sw.process(3, frame(5, src=7))
    assert client.next().digest.list_id == 2


def test_a_notification_that_fails_is_logged_and_does_not_end_the_others(
    sw: Switch, client: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Digests.add
    failed = threading.Event()

    def add(digests: Digests, digest: int, data: bytes, now: float) -> list[p4runtime_pb2.DigestList]:
        if data and not failed.is_set():
            failed.set()
            raise ValueError("broken")
        return whole(digests, digest, data, now)

    monkeypatch.setattr(Digests, "add", add)
    client.write(insert(learn(sw, max_list_size=1)))
    sw.process(3, frame(5, src=7))
    sw.process(3, frame(5, src=8))
    (one,) = client.next().digest.data
    assert one.struct.members[0].bitstring == b"\x08"
    assert failed.is_set()
    assert "ValueError: broken" in caplog.text


def test_only_enabled_digests_are_queued_up_to_a_limit(
    sw: Switch, client: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Digests.add
    seen: list[int] = []
    go_on = threading.Event()

    def add(digests: Digests, digest: int, data: bytes, now: float) -> list[p4runtime_pb2.DigestList]:
        if data:
            seen.append(data[5])  # the last byte of `station`
            assert go_on.wait(10)
        return whole(digests, digest, data, now)

    monkeypatch.setattr(Digests, "add", add)
    monkeypatch.setattr(service, "MAX_QUEUED_DIGESTS", 3)
    sw.process(3, frame(5, src=1))
    client.write(insert(learn(sw, max_list_size=1)))
    sw.process(3, frame(5, src=2))
    wait_until(lambda: seen == [2], "the first digest leaves the queue")
    for src in range(3, 12):
        sw.process(3, frame(5, src=src))
    go_on.set()
    stations = [client.next().digest.data[0].struct.members[0].bitstring[-1] for _ in range(4)]
    assert stations == [2, 3, 4, 5]
    client.write(delete(learn(sw)))
    sw.process(3, frame(5, src=20))
    client.write(insert(learn(sw, max_list_size=1)))
    sw.process(3, frame(5, src=21))
    assert client.next().digest.data[0].struct.members[0].bitstring == b"\x15"
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


def test_a_digest_waits_at_most_for_max_timeout() -> None:
    digests = enabled(max_timeout_ns=2_000_000_000, max_list_size=10)
    assert digests.add(1, b"\0\1", 100.0) == []
    assert digests.add(1, b"\0\2", 101.0) == []
    assert digests.due(101.9) == []
    (message,) = digests.due(102.0)
    assert list(message.data) == [struct(b"\1"), struct(b"\2")]
    assert digests.due(200.0) == []


def test_a_digest_is_sent_again_when_its_list_is_old_or_acknowledged() -> None:
    digests = enabled(max_list_size=1, ack_timeout_ns=1_000_000_000)
    assert len(digests.add(1, b"\0\1", 10.0)) == 1
    assert digests.add(1, b"\0\1", 10.9) == []
    assert len(digests.add(1, b"\0\1", 11.0)) == 1
    digests.acknowledge(p4runtime_pb2.DigestListAck(digest_id=1, list_id=2))
    assert len(digests.add(1, b"\0\1", 11.1)) == 1


def test_50000_lists_may_wait_for_their_acknowledgement() -> None:
    digests = enabled(max_list_size=1, ack_timeout_ns=10**12)
    count = 50_000  # quadratic time would be minutes
    for number in range(count):
        assert len(digests.add(1, number.to_bytes(2, "big"), 1.0)) == 1
    assert digests.add(1, b"\0\7", 2.0) == []
    digests.acknowledge(p4runtime_pb2.DigestListAck(digest_id=1, list_id=8))
    assert len(digests.add(1, b"\0\7", 2.0)) == 1


def test_digests_that_are_not_enabled_are_dropped() -> None:
    digests = Digests([Digest(1, "d", "struct", (16,))])
    assert digests.add(1, b"\0\1", 0.0) == []
    with pytest.raises(RequestError, match="not enabled"):
        digests.write(Update.MODIFY, p4runtime_pb2.DigestEntry(digest_id=1))


# --- idle timeouts


def test_an_idle_entry_is_reported_once_in_each_timeout(sw: Switch) -> None:
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


def test_entries_are_looked_up_only_when_their_timeout_may_have_passed(
    sw: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    target = Target(sw, p4runtime_pb2.ForwardingPipelineConfig(), lambda: now)
    looked_up: list[Key] = []

    def find_and_count(control: ProgramControl, table: Table, key: Key) -> EntryTuple:
        looked_up.append(key)
        return find_entry(control, table, key)

    monkeypatch.setattr(idle, "find_entry", find_and_count)
    for src in range(1, 11):
        apply_update(target, insert(flow(sw, src, idle_timeout_ns=src * 10**9)))
        apply_update(target, modify(flow(sw, src, idle_timeout_ns=src * 10**9)))
    now = 103.5
    assert len(expired(target)) == len(looked_up) == 3
    assert expired(target) == []
    assert len(looked_up) == 3


def test_idle_entries_are_notified_and_their_times_are_read(sw: Switch, client: Controller) -> None:
    entity = flow(sw, 9, idle_timeout_ns=50_000_000)
    client.write(insert(entity))
    notification = client.next().idle_timeout_notification
    assert [e.match[0].exact.value for e in notification.table_entry] == [b"\x09"]
    wanted = Entity()
    wanted.table_entry.table_id = entity.table_entry.table_id
    assert client.read(wanted) == [entity]
    wanted.table_entry.time_since_last_hit.SetInParent()
    (found,) = client.read(wanted)
    assert found.table_entry.time_since_last_hit.elapsed_ns >= 50_000_000


def test_idle_timeouts_are_refused_where_they_mean_nothing(sw: Switch, client: Controller) -> None:
    other, default, negative = route(sw, 5, member=1), flow(sw, 9), flow(sw, 9, idle_timeout_ns=-1)
    other.table_entry.idle_timeout_ns = 1
    default.table_entry.is_default_action = True
    default.table_entry.ClearField("match")
    default.table_entry.idle_timeout_ns = 1
    written = flow(sw, 9)
    written.table_entry.time_since_last_hit.SetInParent()
    updates = insert(other), modify(default), insert(negative), insert(written)
    assert refused(client, *updates) == [Code.INVALID_ARGUMENT] * 4
    assert sw.entries("flows") == sw.entries("route") == []


def test_refused_idle_timeouts_have_the_messages_that_clients_of_bmv2_compare(
    sw: Switch, client: Controller
) -> None:
    unsupported, written = route(sw, 5, member=1), flow(sw, 9)
    unsupported.table_entry.idle_timeout_ns = 1
    written.table_entry.time_since_last_hit.elapsed_ns = 1
    assert [message for _, message in batch_codes(client.write, insert(unsupported), insert(written))] == [
        "idle_timeout_ns must be set to 0 for tables which do not support idle timeout",
        "has_time_since_last_hit must not be set in WriteRequest",
    ]
