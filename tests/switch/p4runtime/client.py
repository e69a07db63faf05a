# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime client as bare as can be, and messages for p4/inagg.p4."""

import queue
import threading
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from google.rpc import status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from inagg_switch.p4runtime.errors import Code
from inagg_switch.switch import Switch

SMALL_P4 = Path(__file__).parent / "small.p4"

Update = p4runtime_pb2.Update
SetRequest = p4runtime_pb2.SetForwardingPipelineConfigRequest
GetRequest = p4runtime_pb2.GetForwardingPipelineConfigRequest


class Controller:
    """A P4Runtime client as bare as can be."""

    def __init__(
        self, address: str, election_id: int | None = 1, options: Sequence[tuple[str, int]] = ()
    ) -> None:
        self.election_id = election_id
        self._channel = grpc.insecure_channel(address, options)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self.received: queue.SimpleQueue = queue.SimpleQueue()
        self._stream = self.stub.StreamChannel(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for message in self._stream:
                self.received.put(message)
            self.received.put(None)
        except grpc.RpcError as error:
            self.received.put(error)

    def send(self, message: p4runtime_pb2.StreamMessageRequest) -> None:
        self._requests.put(message)

    def arbitrate(self, device_id: int = 1, role: str = "", config: bool = False) -> None:
        message = p4runtime_pb2.StreamMessageRequest()
        message.arbitration.device_id = device_id
        if self.election_id is not None:
            message.arbitration.election_id.low = self.election_id
        if role:
            message.arbitration.role.name = role
        if config:
            message.arbitration.role.config.type_url = "x"
        self.send(message)

    def next(self):
        """The next message of the stream, or the error that ended it."""
        return self.received.get(timeout=10)

    def write(self, *updates, **fields) -> None:
        request = p4runtime_pb2.WriteRequest(**{"device_id": 1, **fields})
        if self.election_id is not None:
            request.election_id.low = self.election_id
        request.updates.extend(updates)
        self.stub.Write(request)

    def read(self, *entities) -> list:
        request = p4runtime_pb2.ReadRequest(device_id=1, entities=entities)
        return [entity for response in self.stub.Read(request) for entity in response.entities]

    def configure(
        self, program: Switch | None, action=SetRequest.VERIFY_AND_COMMIT, cookie=None, **fields
    ) -> None:
        request = SetRequest(**{"device_id": 1, "action": action, **fields})
        if self.election_id is not None:
            request.election_id.low = self.election_id
        if program is not None:
            request.config.p4info.CopyFrom(program.p4info)
            request.config.p4_device_config = program.source.encode()
        if cookie is not None:
            request.config.cookie.cookie = cookie
        self.stub.SetForwardingPipelineConfig(request)

    def config(self, response_type=GetRequest.ALL):
        return self.stub.GetForwardingPipelineConfig(GetRequest(device_id=1, response_type=response_type))

    def close(self) -> None:
        self._requests.put(None)
        self._reader.join(10)
        self._channel.close()


def code_of(call, *arguments, **fields) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **fields)
    return caught.value.code()


def batch_codes(call, *arguments) -> list[tuple[int, str]]:
    """(canonical code, message) of every element of a batch that failed as a whole with UNKNOWN."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments)
    assert caught.value.code() == grpc.StatusCode.UNKNOWN
    status = status_pb2.Status()
    status.ParseFromString(dict(caught.value.trailing_metadata())["grpc-status-details-bin"])
    assert status.code == Code.UNKNOWN
    errors = []
    for detail in status.details:
        error = p4runtime_pb2.Error()
        assert detail.Unpack(error)
        errors.append((error.canonical_code, error.message))
    return errors


def table_id(program: Switch, name: str) -> int:
    return next(t.preamble.id for t in program.p4info.tables if t.preamble.name.endswith(name))


def action_id(program: Switch, name: str) -> int:
    return next(a.preamble.id for a in program.p4info.actions if a.preamble.name.endswith("." + name))


def counter_id(program: Switch, name: str) -> int:
    return next(c.preamble.id for c in program.p4info.counters if c.preamble.name.endswith("." + name))


def arp_entry(program: Switch, ip: int, mac: int = 0x0200) -> p4runtime_pb2.Entity:
    entity = p4runtime_pb2.Entity()
    entry = entity.table_entry
    entry.table_id = table_id(program, "arp_responder")
    match = entry.match.add(field_id=1)
    match.exact.value = ip.to_bytes(4, "big").lstrip(b"\0")
    entry.action.action.action_id = action_id(program, "answer")
    entry.action.action.params.add(param_id=1, value=mac.to_bytes(6, "big").lstrip(b"\0"))
    return entity


def insert(entity) -> p4runtime_pb2.Update:
    return Update(type=Update.INSERT, entity=entity)


def modify(entity) -> p4runtime_pb2.Update:
    return Update(type=Update.MODIFY, entity=entity)


def delete(entity) -> p4runtime_pb2.Update:
    return Update(type=Update.DELETE, entity=entity)


def all_entries() -> p4runtime_pb2.Entity:
    entity = p4runtime_pb2.Entity()
    entity.table_entry.SetInParent()
    return entity


def group(number: int, *replicas: tuple[int, int]) -> p4runtime_pb2.Entity:
    entity = p4runtime_pb2.Entity()
    entry = entity.packet_replication_engine_entry.multicast_group_entry
    entry.multicast_group_id = number
    for port, rid in replicas:
        entry.replicas.add(egress_port=port, instance=rid)
    return entity


def counter(program: Switch, name: str, index: int | None = None, value=None) -> p4runtime_pb2.Entity:
    entity = p4runtime_pb2.Entity()
    entity.counter_entry.counter_id = counter_id(program, name)
    if index is not None:
        entity.counter_entry.index.index = index
    if value is not None:
        entity.counter_entry.data.packet_count, entity.counter_entry.data.byte_count = value
    return entity


def admission_entry(program: Switch, rank: int) -> p4runtime_pb2.Entity:
    entity = p4runtime_pb2.Entity()
    entry = entity.table_entry
    entry.table_id = table_id(program, "admission")
    for field, value in enumerate((b"\x01", b"\x0a\x00\x00\x01", b"\x01", bytes([rank])), 1):
        entry.match.add(field_id=field).exact.value = value
    entry.action.action.action_id = action_id(program, "admit")
    for param in range(1, 7):
        entry.action.action.params.add(param_id=param, value=b"\x01")
    return entity
