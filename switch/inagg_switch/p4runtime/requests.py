# SPDX-License-Identifier: Apache-2.0
"""Decodes requests in bounded memory: protobuf's Python makes about 500 bytes of objects from two bytes of a message,
so a request within gRPC's limit could take gigabytes.

Requests that any client may send are limited to small sizes. Large parts are decoded one by one, or after the sender is
known to be the primary controller.
"""

from collections.abc import Iterator
from typing import TypeAlias, TypeVar, cast

from google.protobuf.message import DecodeError, Message
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.errors import Code, RequestError, invalid

MAX_MESSAGE_BYTES = 16 << 20  # of any message; gRPC refuses larger ones with RESOURCE_EXHAUSTED
MAX_HEAD_BYTES = 64 << 10  # without updates, entities or config
MAX_STREAM_MESSAGE_BYTES = 128 << 10  # the largest packet and its metadata
MAX_READ_ELEMENTS = 10_000
MAX_READ_ELEMENT_BYTES = 64 << 10
MAX_P4INFO_BYTES = 1 << 20

_MAX_FIELDS = 20_000  # at the top level of a message whose parts are decoded separately
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_Message = TypeVar("_Message", bound=Message)
_SetRequest: TypeAlias = p4runtime_pb2.SetForwardingPipelineConfigRequest


def decode(kind: type[_Message], message: bytes, limit: int = MAX_HEAD_BYTES) -> _Message:
    """Decode a message. Raises RequestError if it is longer than `limit` or malformed."""
    if len(message) > limit:
        raise RequestError(
            Code.RESOURCE_EXHAUSTED,
            f"a {kind.DESCRIPTOR.name} of {len(message):,} bytes: the switch takes {limit:,}",
        )
    try:
        return cast(_Message, kind.FromString(message))
    except (DecodeError, UnicodeDecodeError, RecursionError):  # the last two from protobuf in Python
        raise malformed() from None


def malformed() -> RequestError:
    """The error for bytes that are not the expected message."""
    return invalid("the message is not what protobuf expects here: it is damaged, or of another service")


def varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    number = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise malformed()


def split(message: bytes, number: int) -> tuple[bytes, list[bytes]]:
    """A message without the field `number`, and the contents of that field (protobuf.dev, "Encoding")."""
    rest, found = bytearray(), []
    at = fields = 0
    while at < len(message):
        fields += 1
        start = at
        tag, at = varint(message, at)
        kind, size = tag & 7, 0
        if kind == _VARINT:
            _, at = varint(message, at)
        elif kind == _BYTES:
            size, at = varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise malformed()
        if at + size > len(message):
            raise malformed()
        contents = at
        at += size
        if tag == number << 3 | _BYTES:
            found.append(message[contents:at])
        else:
            rest += message[start:at]
        if fields > _MAX_FIELDS:
            raise RequestError(Code.RESOURCE_EXHAUSTED, f"the message has more than {_MAX_FIELDS:,} parts")
    return bytes(rest), found


class ReadElements:
    """A ReadRequest whose entities are decoded one by one."""

    def __init__(self, message: bytes) -> None:
        """Raises RequestError."""
        rest, self._entities = split(message, _number(p4runtime_pb2.ReadRequest, "entities"))
        if len(self._entities) > MAX_READ_ELEMENTS:
            raise RequestError(
                Code.RESOURCE_EXHAUSTED,
                f"a read of {len(self._entities):,} entities: the switch takes {MAX_READ_ELEMENTS:,} at a time",
            )
        self.head = decode(p4runtime_pb2.ReadRequest, rest)

    def entities(self) -> Iterator[p4runtime_pb2.Entity]:
        """The entities. Raises RequestError for one that is malformed."""
        return (decode(p4runtime_pb2.Entity, one, MAX_READ_ELEMENT_BYTES) for one in self._entities)


class PipelineRequest:
    """A SetForwardingPipelineConfigRequest whose config is decoded later."""

    def __init__(self, message: bytes) -> None:
        """Raises RequestError."""
        self._message = message
        rest, self._configs = split(message, _number(_SetRequest, "config"))
        self.head = decode(_SetRequest, rest)

    def decoded(self) -> _SetRequest:
        """The request with its config. Raises RequestError."""
        for config in self._configs:
            _, p4infos = split(config, _number(p4runtime_pb2.ForwardingPipelineConfig, "p4info"))
            for p4info in p4infos:
                decode(p4info_pb2.P4Info, p4info, MAX_P4INFO_BYTES)
        return decode(_SetRequest, self._message, MAX_MESSAGE_BYTES)


def _number(kind: type[Message], field: str) -> int:
    return int(kind.DESCRIPTOR.fields_by_name[field].number)
