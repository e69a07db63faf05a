# SPDX-License-Identifier: Apache-2.0
"""Reads cells of counters and registers, without a protobuf object for each cell.

protobuf 3.20, the newest that p4runtime-shell allows, decodes messages in Python from Python 3.11 on, which takes some
40 µs a cell. This module decodes only the fields of cells (protobuf.dev, "Encoding"), and these as protobuf does: it
takes the last value of a field and the last field of a oneof, and merges messages of the same field. It skips unknown
fields and other entities, whose contents it does not check, and refuses groups, which P4Runtime does not have.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from p4.v1 import p4data_pb2, p4runtime_pb2

_Cell = TypeVar("_Cell")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BITS = 70  # of the longest varint, of which protobuf takes the lowest 64
_UINT32, _UINT64 = (1 << 32) - 1, (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class CounterCell:
    """A CounterEntry."""

    counter_id: int
    index: int
    packets: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RegisterCell:
    """A RegisterEntry. value: its bitstring; empty if the entry has other data."""

    register_id: int
    index: int
    value: bytes


class MalformedMessageError(ValueError):
    """Bytes are not a ReadResponse."""


def read_counters(
    channel: Any, device_id: int, entries: Iterable[p4runtime_pb2.CounterEntry], **call: Any
) -> Iterator[CounterCell]:
    """The cells that entries select. Raises grpc.RpcError: INTERNAL if a response is malformed.

    channel: a grpc.Channel; call: further arguments of P4Runtime's Read.
    """
    entities = [p4runtime_pb2.Entity(counter_entry=entry) for entry in entries]
    return _read(channel, device_id, entities, counter_cells, call)


def read_registers(
    channel: Any, device_id: int, entries: Iterable[p4runtime_pb2.RegisterEntry], **call: Any
) -> Iterator[RegisterCell]:
    """As read_counters."""
    entities = [p4runtime_pb2.Entity(register_entry=entry) for entry in entries]
    return _read(channel, device_id, entities, register_cells, call)


def counter_cells(response: bytes) -> list[CounterCell]:
    """The counter entries of an encoded ReadResponse. Raises MalformedMessageError."""
    return [_counter_cell(entry) for entry in _entries(response, _COUNTER_ENTRY)]


def register_cells(response: bytes) -> list[RegisterCell]:
    """The register entries of an encoded ReadResponse. Raises MalformedMessageError."""
    return [_register_cell(entry) for entry in _entries(response, _REGISTER_ENTRY)]


def _read(
    channel: Any,
    device_id: int,
    entities: list[p4runtime_pb2.Entity],
    decode: Callable[[bytes], list[_Cell]],
    call: dict[str, Any],
) -> Iterator[_Cell]:
    read = channel.unary_stream(
        _READ, request_serializer=p4runtime_pb2.ReadRequest.SerializeToString, response_deserializer=decode
    )
    for cells in read(p4runtime_pb2.ReadRequest(device_id=device_id, entities=entities), **call):
        yield from cells


def _tags(message: Any, *names: str) -> Iterator[int]:
    """The tags of a message's fields: number and wire type."""
    sized = (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING)
    for name in names:
        field = message.DESCRIPTOR.fields_by_name[name]
        yield field.number << 3 | (_BYTES if field.type in sized else _VARINT)


def _oneof_tags(message: Any, name: str) -> frozenset[int]:
    fields = message.DESCRIPTOR.oneofs_by_name[name].fields
    return frozenset(_tags(message, *(field.name for field in fields)))


def _part_tags(message: Any, id_name: str) -> tuple[int, int, int]:
    of_id, of_index, of_data = _tags(message, id_name, "index", "data")
    return of_id, of_index, of_data


_READ = f"/{p4runtime_pb2.DESCRIPTOR.services_by_name['P4Runtime'].full_name}/Read"
(_ENTITIES,) = _tags(p4runtime_pb2.ReadResponse, "entities")
_COUNTER_ENTRY, _REGISTER_ENTRY = _tags(p4runtime_pb2.Entity, "counter_entry", "register_entry")
_ENTITY = _oneof_tags(p4runtime_pb2.Entity, "entity")
_OF_COUNTER = _part_tags(p4runtime_pb2.CounterEntry, "counter_id")
_PACKETS, _BYTE_COUNT = _tags(p4runtime_pb2.CounterData, "packet_count", "byte_count")
_OF_REGISTER = _part_tags(p4runtime_pb2.RegisterEntry, "register_id")
(_INDEX,) = _tags(p4runtime_pb2.Index, "index")
(_BITSTRING,) = _tags(p4data_pb2.P4Data, "bitstring")
_DATA = _oneof_tags(p4data_pb2.P4Data, "data")


def _entries(response: bytes, wanted: int) -> Iterator[bytes]:
    """The contents of the entities of one kind."""
    for tag, entity in _fields(response):
        if tag == _ENTITIES:
            kind, entry = _entry(entity)
            if kind == wanted:
                yield entry


def _entry(entity: bytes) -> tuple[int, bytes]:
    """(tag, contents) of the entry of an entity; the tag is 0 if the entity has none."""
    kind, entry = 0, b""
    for tag, value in _fields(entity):
        if tag in _ENTITY:
            kind, entry = tag, entry + value if tag == kind else value
    return kind, entry


def _counter_cell(entry: bytes) -> CounterCell:
    packets = byte_count = 0
    number, index, data = _parts(entry, _OF_COUNTER)
    for tag, value in _fields(data):
        if tag == _PACKETS:
            packets = _int64(value)
        elif tag == _BYTE_COUNT:
            byte_count = _int64(value)
    return CounterCell(number, index, packets, byte_count)


def _register_cell(entry: bytes) -> RegisterCell:
    bitstring = b""
    number, index, data = _parts(entry, _OF_REGISTER)
    for tag, value in _fields(data):
        if tag in _DATA:
            bitstring = value if tag == _BITSTRING else b""
    return RegisterCell(number, index, bitstring)


def _parts(entry: bytes, tags: tuple[int, int, int]) -> tuple[int, int, bytes]:
    """The id, the index and the encoded data of an entry, whose fields have these tags."""
    of_id, of_index, of_data = tags
    number = 0
    index = data = b""
    for tag, value in _fields(entry):
        if tag == of_id:
            number = value & _UINT32
        elif tag == of_index:
            index += value
        elif tag == of_data:
            data += value
    return number, _index(index), data


def _index(message: bytes) -> int:
    index = 0
    for tag, value in _fields(message):
        if tag == _INDEX:
            index = _int64(value)
    return index


def _int64(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(tag, value) of each field. The value is a number for varints, else bytes."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        kind = tag & 7
        if tag == kind:
            raise MalformedMessageError("not a ReadResponse: a field has the number 0")
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind == _VARINT:
            value, at = _varint(message, at)
            yield tag, value
            continue
        elif kind in _FIXED_SIZES:
            size = _FIXED_SIZES[kind]
        else:
            raise MalformedMessageError(f"not a ReadResponse: a field has the wire type {kind}")
        start, at = at, at + size
        if at > end:
            raise MalformedMessageError("not a ReadResponse: a field ends after its message")
        yield tag, message[start:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    try:
        byte = message[at]
        if byte < 0x80:
            return byte, at + 1
        number = byte & 0x7F
        for shift in range(7, _VARINT_BITS, 7):
            at += 1
            byte = message[at]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number & _UINT64, at + 1
    except IndexError:
        raise MalformedMessageError("not a ReadResponse: a message ends within a number") from None
    raise MalformedMessageError("not a ReadResponse: a number has more than 10 bytes")
