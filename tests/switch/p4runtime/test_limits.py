# SPDX-License-Identifier: Apache-2.0
"""Heavy and malformed requests to the P4Runtime server: its memory stays bounded, it answers other clients, and it ends
the calls of clients that have gone."""

import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from p4.v1 import p4runtime_pb2

from inagg_switch import Switch
from inagg_switch.p4runtime.batch import MAX_UPDATES
from inagg_switch.p4runtime.calls import PATIENCE_S, REQUEST_PATIENCE_S
from inagg_switch.p4runtime.errors import Code
from inagg_switch.p4runtime.requests import MAX_MESSAGE_BYTES, MAX_READ_ELEMENTS, split
from inagg_switch.p4runtime.server import _THREADS, SwitchServer
from inagg_switch.p4runtime.service import MAX_READS, MAX_WRITES
from inagg_switch.p4runtime.streams import MAX_NOTIFICATIONS, MAX_QUEUED_BYTES, Stream
from inagg_switch.ports import PortOptions, Ports
from tests import INAGG_P4
from tests.switch.p4runtime.client import (
    Connect,
    Controller,
    all_entries,
    arp_entry,
    batch_codes,
    code_of,
    counter,
    group,
    insert,
    modify,
)
from tests.waiting import wait_until

SERVER = """
import sys
from inagg_switch import Switch
from inagg_switch.ports import Ports
from inagg_switch.p4runtime.server import SwitchServer
server = SwitchServer(Ports([]), device_id=1, address=sys.argv[2])
server.load(Switch.from_p4(sys.argv[1]))
server.start()
print("ready", flush=True)
sys.stdin.read()
server.stop()
"""
PACKETS_P4 = Path(__file__).parent / "packets.p4"
CPU_PORT = 510
ENTITIES = p4runtime_pb2.ReadResponse.DESCRIPTOR.fields_by_name["entities"].number
METHODS = ("Capabilities", "Read", "Write", "SetForwardingPipelineConfig", "GetForwardingPipelineConfig")


class Process:
    """A server of p4/inagg.p4 in a child process."""

    def __init__(self, address: str) -> None:
        self.address = address
        command = [sys.executable, "-c", SERVER, str(INAGG_P4), address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def peak_mib(self) -> int:
        """Peak resident memory of the process."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024

    def close(self) -> None:
        self._process.communicate(timeout=20)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(f"unix:{tmp_path}/s.sock")
    yield made
    made.close()


@pytest.fixture
def server(tmp_path: Path, inagg: Switch) -> Iterator[SwitchServer]:
    made = SwitchServer(Ports([]), device_id=1, address=f"unix:{tmp_path}/s.sock")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def lead(server: SwitchServer, tmp_path: Path, connect: Connect, inagg: Switch) -> Controller:
    """The primary of `server`."""
    controller = connect(f"unix:{tmp_path}/s.sock")
    controller.arbitrate()
    controller.next()
    controller.configure(inagg)
    return controller


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[grpc.Channel]:
    """A connection on which anything can be sent."""
    with grpc.insecure_channel(f"unix:{tmp_path}/s.sock") as channel:
        yield channel


def path(method: str) -> str:
    return f"/p4.v1.P4Runtime/{method}"


def everything(*kinds: str) -> bytes:
    request = p4runtime_pb2.ReadRequest(device_id=1)
    for kind in kinds:
        getattr(request.entities.add(), kind).SetInParent()
    message: bytes = request.SerializeToString()
    return message


def register(program: Switch, name: str, value: bytes, index: int | None = None) -> p4runtime_pb2.Entity:
    entity = p4runtime_pb2.Entity()
    entry = entity.register_entry
    entry.register_id = next(
        one.preamble.id for one in program.p4info.registers if one.preamble.name.endswith("." + name)
    )
    entry.data.bitstring = value
    if index is not None:
        entry.index.index = index
    return entity


def test_a_read_of_the_pool_takes_little_memory_and_others_are_answered(
    process: Process, connect: Connect, inagg: Switch, raw: grpc.Channel
) -> None:
    lead = connect(process.address)
    lead.arbitrate()
    lead.next()
    lead.write(modify(register(inagg, "pool", b"\xff" * 256)))
    before = process.peak_mib()
    counts: queue.SimpleQueue[int] = queue.SimpleQueue()

    def read_all() -> None:
        found = raw.unary_stream(path("Read"))(everything("register_entry"), timeout=60)
        counts.put(sum(len(split(one, ENTITIES)[1]) for one in found))

    readers = [threading.Thread(target=read_all) for _ in range(4)]
    for reader in readers:
        reader.start()
    waited = []
    while any(reader.is_alive() for reader in readers):
        start = time.monotonic()
        lead.read(counter(inagg, "result_sent"))
        lead.write(modify(register(inagg, "slot_epoch", b"\x01", 1)))
        waited.append(time.monotonic() - start)
    cells = sum(r.size for r in inagg.p4info.registers)
    assert [counts.get() for _ in readers] == [cells] * 4
    assert process.peak_mib() - before < 64  # a quarter of what is sent
    assert max(waited) < 5  # seconds, on a machine that may be busy


def test_a_read_shows_the_state_between_two_writes(
    lead: Controller, raw: grpc.Channel, inagg: Switch
) -> None:
    def entries(metadata: bytes) -> list[p4runtime_pb2.Entity]:
        made = [arp_entry(inagg, ip) for ip in range(1, 17)]
        for entity in made:
            entity.table_entry.metadata = metadata * 60_000
        return made

    lead.write(*map(insert, entries(b"1")))
    answer = raw.unary_stream(path("Read"))(everything("table_entry"))
    responses = [p4runtime_pb2.ReadResponse.FromString(next(answer))]
    lead.write(*map(modify, entries(b"2")))  # while most of the answer is still to be sent
    responses += map(p4runtime_pb2.ReadResponse.FromString, answer)
    assert len(responses) > 2
    assert [entity for response in responses for entity in response.entities] == entries(b"1")


def test_reads_of_clients_that_have_gone_end(
    server: SwitchServer, lead: Controller, raw: grpc.Channel
) -> None:
    read = raw.unary_stream(path("Read"))
    for _ in range(3 * MAX_READS):
        cancelled = read(everything("register_entry"))
        next(cancelled)
        cancelled.cancel()
        late = read(everything("register_entry"), timeout=0.001)
        assert code_of(list, late) == grpc.StatusCode.DEADLINE_EXCEEDED
        # The switch answers MAX_READS at a time: wait until there is room for the next ones.
        wait_until(lambda: server.calls.open("Read") < MAX_READS, "reads to be over")
    wait_until(lambda: server.calls.open("Read") == 0, "all reads to be over")
    assert lead.read(all_entries()) == []


def test_reads_of_clients_that_do_not_receive_are_ended(
    server: SwitchServer, lead: Controller, inagg: Switch, raw: grpc.Channel
) -> None:
    read = raw.unary_stream(path("Read"))
    lead.write(modify(register(inagg, "pool", b"\xff" * 256)))  # more than the buffers of a connection hold
    stuck = [read(everything("register_entry")) for _ in range(MAX_READS)]
    wait_until(lambda: server.calls.patience.waiting() == MAX_READS, "all of them to wait")
    assert code_of(lead.read, all_entries()) == grpc.StatusCode.RESOURCE_EXHAUSTED
    lead.write(insert(group(1, (1, 0))))

    def are_over() -> bool:
        # Repeatedly: the switch may not yet have noticed that a client receives nothing.
        server.calls.patience.lose(time.monotonic() + PATIENCE_S)
        return server.calls.open("Read") == 0

    wait_until(are_over, "the switch to give them up")
    assert code_of(list, stuck[0]) == grpc.StatusCode.CANCELLED
    assert lead.read(group(0)) == [group(1, (1, 0))]


def test_a_refused_read_releases_the_entities_that_it_holds(
    monkeypatch: pytest.MonkeyPatch, lead: Controller, raw: grpc.Channel, inagg: Switch
) -> None:
    monkeypatch.setattr("inagg_switch.p4runtime.read.MAX_HELD_BYTES", 10_000)
    lead.write(insert(arp_entry(inagg, 1)))
    half = everything(*["table_entry"] * 50)
    garbage = bytes([2 << 3 | 2, 1, 0xFF])  # the field "entities" with one byte that is not an entity
    read = raw.unary_stream(path("Read"))
    for _ in range(10):
        assert code_of(list, read(half + garbage)) == grpc.StatusCode.INVALID_ARGUMENT
    assert lead.read(all_entries()) == [arp_entry(inagg, 1)]


def test_calls_without_a_request_are_ended(server: SwitchServer, lead: Controller, raw: grpc.Channel) -> None:
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait()
        yield from ()

    calls = [raw.stream_unary(path(method)).future(nothing()) for method in METHODS for _ in range(4)]
    wait_until(lambda: server.calls.patience.waiting() == len(calls), "all of them to wait")
    server.calls.patience.lose(time.monotonic() + REQUEST_PATIENCE_S)
    for call in calls:
        assert call.exception(timeout=10).code() == grpc.StatusCode.CANCELLED
    never.set()
    lead.write(insert(group(1, (1, 0))))


def test_a_stream_without_arbitration_is_ended(
    server: SwitchServer, lead: Controller, tmp_path: Path, connect: Connect
) -> None:
    silent, backup = connect(f"unix:{tmp_path}/s.sock"), connect(f"unix:{tmp_path}/s.sock", 0)
    backup.arbitrate()
    assert backup.next().arbitration.status.code == Code.ALREADY_EXISTS
    silent.send(p4runtime_pb2.StreamMessageRequest())
    assert silent.next().error.canonical_code == Code.UNIMPLEMENTED
    server.calls.patience.lose(time.monotonic() + PATIENCE_S)
    assert silent.next().code() == grpc.StatusCode.CANCELLED
    lead.close()
    assert backup.next().arbitration.status.code == Code.NOT_FOUND


@pytest.mark.parametrize("method", METHODS)
def test_garbage_is_an_invalid_argument(
    server: SwitchServer, lead: Controller, raw: grpc.Channel, method: str
) -> None:
    rng = random.Random(method)
    call = raw.unary_stream(path(method))
    for size in (1, 10, 1000, 50_000):
        message = b"\xff" + rng.randbytes(size)
        assert code_of(list, call(message)) == grpc.StatusCode.INVALID_ARGUMENT
    groups = b"\xfb\x01" * 1000  # field 31, each nested in the one before
    assert code_of(list, call(groups)) == grpc.StatusCode.INVALID_ARGUMENT
    lead.write(insert(group(1, (1, 0))))


def test_a_refused_program_leaves_a_short_line_in_the_log(
    lead: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=1)
    request.action = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
    request.election_id.low = 1
    request.config.p4_device_config = b"x" * (1 << 20)
    refused = code_of(lead.stub.SetForwardingPipelineConfig, request)
    assert refused == grpc.StatusCode.INVALID_ARGUMENT
    assert "pipeline config refused: the device config does not compile" in caplog.text
    assert len(caplog.text) < 10_000


def test_text_that_is_not_utf8_is_an_invalid_argument(server: SwitchServer, raw: grpc.Channel) -> None:
    role = b"\x32\x01\xd0"  # field 6: not UTF-8
    call = raw.unary_unary(path("Write"))
    assert code_of(call, role) == grpc.StatusCode.INVALID_ARGUMENT


def test_garbage_ends_a_stream(server: SwitchServer, lead: Controller, raw: grpc.Channel) -> None:
    stream = raw.stream_stream(path("StreamChannel"))
    for message in (b"\xff", b"\xff" * 1000):
        assert code_of(list, stream(iter([message]))) == grpc.StatusCode.INVALID_ARGUMENT


def test_requests_that_are_too_large_are_refused(
    server: SwitchServer, lead: Controller, raw: grpc.Channel
) -> None:
    updates, entities = b"\x22\x00" * (MAX_UPDATES + 1), b"\x12\x00" * (MAX_READ_ELEMENTS + 1)
    unknown = b"\x9a\x06\x80\x80\x08" + bytes(1 << 17)  # an unknown field
    requests = [("Write", updates), ("Read", entities)]
    requests += [(method, unknown) for method in METHODS]
    requests += [(method, bytes(MAX_MESSAGE_BYTES + 1)) for method in METHODS]
    for method, message in requests:
        call = raw.unary_stream(path(method))
        code = code_of(list, call(message))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED, method
    lead.write(insert(group(1, (1, 0))))


def test_a_damaged_update_is_found_before_any_is_written(
    server: SwitchServer, lead: Controller, raw: grpc.Channel
) -> None:
    request = p4runtime_pb2.WriteRequest(device_id=1, updates=[insert(group(1, (1, 0)))])
    request.election_id.low = 1
    message = request.SerializeToString() + b"\x22\x02\x12\x7f"
    assert code_of(raw.unary_unary(path("Write")), message) == grpc.StatusCode.INVALID_ARGUMENT
    assert lead.read(group(0)) == []


def test_a_large_batch_that_fails_is_answered(
    server: SwitchServer, lead: Controller, tmp_path: Path, connect: Connect
) -> None:
    again = connect(f"unix:{tmp_path}/s.sock", 2, max_metadata_size=8 << 20)
    again.arbitrate()
    again.next()
    errors = batch_codes(again.write, insert(group(1, (1, 0))), *[insert(group(1, (1, 0)))] * 1000)
    assert [code for code, _ in errors] == [Code.OK] + [Code.ALREADY_EXISTS] * 1000


def test_a_write_stops_when_its_client_has_gone(
    server: SwitchServer, lead: Controller, raw: grpc.Channel
) -> None:
    request = p4runtime_pb2.WriteRequest(device_id=1)
    request.election_id.low = 1
    request.updates.extend(insert(group(number, (1, 0))) for number in range(1, 5000))
    message = request.SerializeToString()
    call = raw.unary_unary(path("Write")).future(message)
    wait_until(
        lambda: lead.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest()) and bool(written(server)), "some"
    )
    call.cancel()
    wait_until(lambda: server.calls.open("Write") == 0, "the write to end")
    assert 0 < len(lead.read(group(0))) < 4999


def test_a_client_that_leaves_while_its_arbitration_waits_holds_no_election_id_and_no_thread(
    server: SwitchServer, lead: Controller, tmp_path: Path, connect: Connect
) -> None:
    def readers() -> int:
        return sum(thread.name == "p4runtime-stream" for thread in threading.enumerate())

    with server._service._state:  # a Write holds it
        gone = connect(f"unix:{tmp_path}/s.sock", 7)
        gone.arbitrate()
        wait_until(lambda: readers() == 2 and server.calls.patience.waiting() == 0, "the message to arrive")
        gone._stream.cancel()
        wait_until(lambda: server.calls.open("StreamChannel") == 1, "the stream to end")
        wait_until(lambda: readers() == 1, "its thread to end")
    again = connect(f"unix:{tmp_path}/s.sock", 7)
    again.arbitrate()
    answer = again.next()
    assert isinstance(answer, p4runtime_pb2.StreamMessageResponse), answer
    assert answer.arbitration.status.code == Code.OK


@pytest.mark.parametrize("method", ["Read", "Write", "SetForwardingPipelineConfig"])
def test_a_call_that_waits_for_a_write_ends_with_its_client(
    server: SwitchServer, lead: Controller, raw: grpc.Channel, inagg: Switch, method: str
) -> None:
    requests = {
        "Read": everything("table_entry"),
        "Write": one_group(),
        "SetForwardingPipelineConfig": p4runtime_pb2.SetForwardingPipelineConfigRequest(
            device_id=1,
            election_id=p4runtime_pb2.Uint128(low=1),
            action=p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
            config=lead.config().config,
        ).SerializeToString(),
    }
    with server._service._state:  # a Write holds it
        calls = [raw.unary_stream(path(method))(requests[method]) for _ in range(5)]
        wait_until(lambda: server.calls.open(method) == 5, "all of them to wait")
        for call in calls:
            call.cancel()
        wait_until(lambda: server.calls.open(method) == 0, "all of them to end", 60)
    assert lead.read(group(0)) == []


def test_a_read_ends_with_its_client_though_a_write_has_begun(
    server: SwitchServer, lead: Controller, raw: grpc.Channel, inagg: Switch
) -> None:
    lead.write(modify(register(inagg, "pool", b"\xff" * 256)))
    found = raw.unary_stream(path("Read"))(everything("register_entry"))
    next(found)
    with server._service._state:  # a Write holds it
        found.cancel()
        wait_until(lambda: server.calls.open("Read") == 0, "the read to end")


def test_writes_that_wait_leave_threads_to_other_calls_and_succeed(
    server: SwitchServer, lead: Controller, raw: grpc.Channel, tmp_path: Path, connect: Connect
) -> None:
    numbers = range(1, MAX_WRITES + _THREADS + 2)
    write = raw.unary_unary(path("Write"))
    with server._service._state:  # a Write holds it
        calls = [write.future(one_group(number)) for number in numbers]
        wait_until(lambda: server.calls.open("Write") == MAX_WRITES, "as many as may to have begun")
        gone = write.future(one_group(numbers.stop))
        gone.cancel()
        assert raw.unary_unary(path("Capabilities"))(b"", timeout=10)
        backup = connect(f"unix:{tmp_path}/s.sock", 0)
        backup.arbitrate()
        wait_until(lambda: server.calls.open("StreamChannel") == 2, "another controller to connect")
        assert server.calls.open("Write") == MAX_WRITES
    assert backup.next().arbitration.status.code == Code.ALREADY_EXISTS
    assert [call.exception(timeout=60) for call in calls] == [None] * len(numbers)
    wait_until(lambda: server.calls.open("Write") == 0, "the one that has gone to end")
    found = (one.packet_replication_engine_entry.multicast_group_entry for one in lead.read(group(0)))
    assert sorted(one.multicast_group_id for one in found) == list(numbers)


def one_group(number: int = 1) -> bytes:
    """The primary's request to make a group."""
    request = p4runtime_pb2.WriteRequest(device_id=1, updates=[insert(group(number, (1, 0)))])
    request.election_id.low = 1
    message: bytes = request.SerializeToString()
    return message


def test_refused_updates_take_little_memory(process: Process, connect: Connect, raw: grpc.Channel) -> None:
    lead = connect(process.address)
    lead.arbitrate()
    lead.next()
    request = p4runtime_pb2.WriteRequest(device_id=1)
    request.election_id.low = 1
    request.updates.extend(modify(group(number, (1, 0))) for number in range(1, 20_001))
    before = process.peak_mib()
    call = raw.unary_unary(path("Write")).future(request.SerializeToString())
    assert call.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.RESOURCE_EXHAUSTED)  # a large answer
    assert process.peak_mib() - before < 64


def written(server: SwitchServer) -> int:
    target = server._service._pipeline.running
    return len(target.groups) if target is not None else 0


def test_packets_reach_the_controller_during_a_long_write(tmp_path: Path, connect: Connect) -> None:
    ports = Ports([], PortOptions(cpu_port=CPU_PORT))
    made = SwitchServer(ports, device_id=1, address=f"unix:{tmp_path}/p.sock")
    made.load(Switch.from_p4(PACKETS_P4))
    made.start()
    try:
        lead = connect(f"unix:{tmp_path}/p.sock")
        lead.arbitrate()
        lead.next()
        with made._service._state:  # a Write holds it
            ports.inject(1, b"meanwhile")
            assert lead.next().packet.payload == b"meanwhile"
            assert lead.stub.Capabilities(p4runtime_pb2.CapabilitiesRequest()).p4runtime_api_version
    finally:
        made.stop()


def test_messages_that_wait_for_a_controller_are_bounded_in_number_and_bytes() -> None:
    cancelled = threading.Event()
    stream = Stream(cancelled.set)
    large = bytes(MAX_QUEUED_BYTES // 4)
    assert [stream.offer(large, 1000) for _ in range(5)] == [True] * 4 + [False]
    assert [stream.offer(b"", 6) for _ in range(3)] == [True, True, False]
    # Notifications have more room. When that is full too, the stream ends.
    for _ in range(MAX_NOTIFICATIONS):
        stream.notify(b"primary", 6)
    assert not cancelled.is_set()
    stream.notify(b"primary", 6)
    assert cancelled.is_set()
    messages = stream.messages()
    assert next(messages) == large
    assert stream.offer(b"room again", 10_000)
