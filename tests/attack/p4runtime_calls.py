# SPDX-License-Identifier: Apache-2.0
"""python -m tests.attack.p4runtime_calls NAME COUNT: call the P4Runtime server on 127.0.0.1:9559, print the outcomes as
JSON.

No call takes the primary role, because any controller with a higher election id may do that (docs/protocol.md, 7).
"""

import json
import queue
import random
import sys
from collections import Counter
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

import inagg_p4runtime.messages
import inagg_p4runtime.quiet  # noqa: F401  before grpc

ADDRESS = "127.0.0.1:9559"
SERVICE = "/p4.v1.P4Runtime/"
UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
REQUESTS = {
    "Write": p4runtime_pb2.WriteRequest,
    "Read": p4runtime_pb2.ReadRequest,
    "SetForwardingPipelineConfig": p4runtime_pb2.SetForwardingPipelineConfigRequest,
    "GetForwardingPipelineConfig": p4runtime_pb2.GetForwardingPipelineConfigRequest,
    "Capabilities": p4runtime_pb2.CapabilitiesRequest,
    "StreamChannel": p4runtime_pb2.StreamMessageRequest,
}
ENTITIES = [field.name for field in p4runtime_pb2.Entity.DESCRIPTOR.fields]
PATIENCE_S = 120.0


def channel() -> grpc.Channel:
    return grpc.insecure_channel(ADDRESS, UNLIMITED)


def code(error: grpc.RpcError) -> str:
    assert isinstance(error, grpc.Call)
    return str(error.code().name)


def garbage(count: int) -> Counter[str]:
    """Call all methods with random bytes and with well-formed messages of random values."""
    draws, found = random.Random(14), Counter[str]()
    with channel() as server:
        for _ in range(count):
            method = draws.choice(list(REQUESTS))
            data = draws.randbytes(draws.randint(0, 300)) if draws.random() < 0.3 else filled(method, draws)
            if takes_over(method, data):
                continue
            make = server.stream_stream if method == "StreamChannel" else server.unary_stream
            call = make(SERVICE + method)
            try:
                answers = call(iter([data]) if method == "StreamChannel" else data, timeout=PATIENCE_S)
                for _ in answers:
                    found["answers"] += 1
                found["OK"] += 1
            except grpc.RpcError as error:
                found[code(error)] += 1
    return found


def takes_over(method: str, data: bytes) -> bool:
    """Whether a request has an election id, so that it could take the primary role or act in it."""
    try:
        request = REQUESTS[method].FromString(data)
    except (DecodeError, ValueError):  # protobuf's Python code raises UnicodeDecodeError for invalid UTF-8
        return False
    return any("election_id" in field.name for field, _ in request.ListFields()) or (
        method == "StreamChannel" and request.HasField("arbitration")
    )


def filled(method: str, draws: random.Random) -> bytes:
    """A request, serialised, with random values in some of its fields."""
    request = REQUESTS[method]()
    fill(request, draws, 6)
    request.ClearField("election_id") if "election_id" in request.DESCRIPTOR.fields_by_name else None
    if method != "Capabilities" and "device_id" in request.DESCRIPTOR.fields_by_name and draws.random() < 0.8:
        request.device_id = 1
    return bytes(request.SerializeToString())


def fill(message: Any, draws: random.Random, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if draws.random() < 0.5:
            continue
        many = field.label == field.LABEL_REPEATED
        if field.message_type is not None:
            if depth and not field.message_type.GetOptions().map_entry:
                for _ in range(draws.randint(1, 3) if many else 1):
                    part = getattr(message, field.name)
                    fill(part.add() if many else part, draws, depth - 1)
        else:
            values = [value(field, draws) for _ in range(draws.randint(1, 3))]
            if many:
                getattr(message, field.name).extend(values)
            else:
                setattr(message, field.name, values[0])


def value(field: Any, draws: random.Random) -> Any:
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        data = draws.randbytes(draws.randint(0, 12))
        return data if field.type == field.TYPE_BYTES else data.hex()
    if kind == field.CPPTYPE_BOOL:
        return draws.random() < 0.5
    if kind == field.CPPTYPE_ENUM:
        return draws.choice(field.enum_type.values).number
    if kind in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return draws.random()
    bits = 31 if kind in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 63
    return draws.choice((0, 1, 2, draws.getrandbits(8), draws.getrandbits(bits)))


def streams(count: int) -> Counter[str]:
    """Open all streams at once as backup controllers; then each stream sends a packet, which a backup may not."""
    found, open_streams = Counter[str](), []
    for number in range(count):
        server, requests = channel(), queue.SimpleQueue[Any]()
        answers = p4runtime_pb2_grpc.P4RuntimeStub(server).StreamChannel(iter(requests.get, None))
        message = p4runtime_pb2.StreamMessageRequest()
        message.arbitration.device_id = 1
        if number % 2:
            message.arbitration.election_id.low = 0
        requests.put(message)
        open_streams.append((server, requests, answers))
    for _, requests, answers in open_streams:
        try:
            next(answers)
            found["streams"] += 1
            message = p4runtime_pb2.StreamMessageRequest()
            message.packet.payload = bytes(100)
            requests.put(message)
            found[str(next(answers).WhichOneof("update"))] += 1
        except grpc.RpcError as error:
            found[code(error)] += 1
    for server, requests, _ in open_streams:
        requests.put(None)
        server.close()
    return found


def idle(count: int) -> Counter[str]:
    """Open connections without a call; a call on one more connection still works."""
    channels = [channel() for _ in range(count)]
    ready = sum(is_ready(one) for one in channels)
    with channel() as server:
        p4runtime_pb2_grpc.P4RuntimeStub(server).Capabilities(REQUESTS["Capabilities"](), timeout=10)
    for one in channels:
        one.close()
    return Counter({"connections": ready})


def is_ready(server: grpc.Channel) -> bool:
    try:
        grpc.channel_ready_future(server).result(timeout=5)
    except grpc.FutureTimeoutError:
        return False
    return True


def wildcard(*names: str) -> p4runtime_pb2.ReadRequest:
    request = p4runtime_pb2.ReadRequest(device_id=1)
    for name in names:
        getattr(request.entities.add(), name).SetInParent()
    return request


def reads(count: int) -> Counter[str]:
    """Read every entity of the switch, kind by kind `count` times, then all kinds at once."""
    found = Counter[str]()
    with channel() as server:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(server)
        for names in [(name,) for name in ENTITIES] * count + [tuple(ENTITIES)]:
            try:
                for answer in stub.Read(wildcard(*names), timeout=PATIENCE_S):
                    found["entities"] += len(answer.entities)
                    found["bytes"] += answer.ByteSize()
                found["reads"] += 1
            except grpc.RpcError as error:
                found[code(error)] += 1
    return found


def cancelled(count: int) -> Counter[str]:
    """Wildcard reads of all registers, cancelled after the first answer. Every second one has a deadline of 50 ms."""
    found = Counter[str]()
    with channel() as server:
        stub = p4runtime_pb2_grpc.P4RuntimeStub(server)
        for number in range(count):
            try:
                answers = stub.Read(wildcard("register_entry"), timeout=0.05 if number % 2 else PATIENCE_S)
                next(answers)
                answers.cancel()
                found["cancelled reads"] += 1
            except grpc.RpcError as error:
                found[code(error)] += 1
    return found


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](int(sys.argv[2]))))
