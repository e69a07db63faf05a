# SPDX-License-Identifier: Apache-2.0
"""A minimal P4Runtime client, and messages for p4/inagg.p4."""

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ParamSpec, Protocol, TypeAlias

import grpc
import pytest
from google.rpc import status_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from inagg_switch.p4runtime.errors import Code
from inagg_switch.switch import Switch

SMALL_P4 = Path(__file__).parent / "small.p4"

Update: TypeAlias = p4runtime_pb2.Update
SetRequest: TypeAlias = p4runtime_pb2.SetForwardingPipelineConfigRequest
GetRequest: TypeAlias = p4runtime_pb2.GetForwardingPipelineConfigRequest

Received: TypeAlias = p4runtime_pb2.StreamMessageResponse | grpc.RpcError
P = ParamSpec("P")


class Controller:
    """A P4Runtime client that sends what it is given and checks nothing.

    `received` has the messages of its stream, in order, and last the error that ended the stream.
    """

    def __init__(
        self, address: str, election_id: int | None = 1, options: Sequence[tuple[str, int]] = ()
    ) -> None:
        self.election_id = election_id
        self._channel = grpc.insecure_channel(address, options)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._requests: queue.SimpleQueue[p4runtime_pb2.StreamMessageRequest | None] = queue.SimpleQueue()
        self.received: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._stream = self.stub.StreamChannel(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for message in self._stream:
                self.received.put(message)
            self.received.put(grpc.RpcError("the server has ended the stream"))
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

    def next(self) -> Received:
        """The next message of the stream, or the error that ended it."""
        return self.received.get(timeout=30)  # a switch may compile its program first

    def write(self, *updates: Update, **fields: int) -> None:
        request = p4runtime_pb2.WriteRequest(**{"device_id": 1, **fields})
        if self.election_id is not None:
            request.election_id.low = self.election_id
        request.updates.extend(updates)
        self.stub.Write(request)

    def read(self, *entities: p4runtime_pb2.Entity) -> list[p4runtime_pb2.Entity]:
        request = p4runtime_pb2.ReadRequest(device_id=1, entities=entities)
        return [entity for response in self.stub.Read(request) for entity in response.entities]

    def configure(
        self,
        program: Switch | None,
        action: int = SetRequest.VERIFY_AND_COMMIT,
        cookie: int | None = None,
        **fields: int,
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

    def config(
        self, response_type: int = GetRequest.ALL
    ) -> p4runtime_pb2.GetForwardingPipelineConfigResponse:
        return self.stub.GetForwardingPipelineConfig(GetRequest(device_id=1, response_type=response_type))

    def close(self) -> None:
        self._requests.put(None)
        self._reader.join(10)
        self._channel.close()


class Connect(Protocol):
    """Connects a controller; `options` are gRPC's, without "grpc."."""

    def __call__(self, address: str, election_id: int | None = 1, **options: int) -> Controller: ...


def code_of(call: Callable[P, object], *arguments: P.args, **fields: P.kwargs) -> grpc.StatusCode:
    """The status code that the call fails with."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **fields)
    return caught.value.code()


def batch_codes(call: Callable[P, object], *arguments: P.args, **fields: P.kwargs) -> list[tuple[int, str]]:
    """(canonical code, message) of each element of a batch. The call must fail with UNKNOWN."""
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **fields)
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


class Named(Protocol):
    """An object of a P4Info, such as a table."""

    @property
    def preamble(self) -> p4info_pb2.Preamble: ...


def id_of(objects: Iterable[Named], ending: str) -> int:
    """The id of the first object whose name ends in `ending`."""
    number: int = next(one.preamble.id for one in objects if one.preamble.name.endswith(ending))
    return number


def table_id(program: Switch, name: str) -> int:
    return id_of(program.p4info.tables, name)


def action_id(program: Switch, name: str) -> int:
    return id_of(program.p4info.actions, "." + name)


def counter_id(program: Switch, name: str) -> int:
    return id_of(program.p4info.counters, "." + name)


def arp_entry(program: Switch, ip: int, mac: int = 0x0200) -> p4runtime_pb2.Entity:
    entity = p4runtime_pb2.Entity()
    entry = entity.table_entry
    entry.table_id = table_id(program, "arp_responder")
    match = entry.match.add(field_id=1)
    match.exact.value = ip.to_bytes(4, "big").lstrip(b"\0")
    entry.action.action.action_id = action_id(program, "answer")
    entry.action.action.params.add(param_id=1, value=mac.to_bytes(6, "big").lstrip(b"\0"))
    return entity


def insert(entity: p4runtime_pb2.Entity) -> Update:
    return Update(type=Update.INSERT, entity=entity)


def modify(entity: p4runtime_pb2.Entity) -> Update:
    return Update(type=Update.MODIFY, entity=entity)


def delete(entity: p4runtime_pb2.Entity) -> Update:
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


def counter(
    program: Switch, name: str, index: int | None = None, value: tuple[int, int] | None = None
) -> p4runtime_pb2.Entity:
    """One cell, or without an index all cells; `value` is packets and bytes."""
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
    for param in range(1, 10):
        entry.action.action.params.add(param_id=param, value=b"\x01")
    return entity
