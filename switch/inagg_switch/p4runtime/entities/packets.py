# SPDX-License-Identifier: Apache-2.0
"""Converts between frames of the CPU port and PacketIn and PacketOut messages.

The program sees the message's metadata as a header before the packet, with fields in P4Info order, most significant bit
first (P4Runtime specification, "Packet I/O").
"""

from collections.abc import Sequence
from dataclasses import dataclass

from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime.entities.names import Field, Names, fields_of
from inagg_switch.p4runtime.entities.values import canonical, full_width
from inagg_switch.p4runtime.errors import invalid


@dataclass(frozen=True)
class ControllerHeader:
    """A header with @controller_header. Without fields it has no bytes."""

    name: str
    fields: tuple[Field, ...] = ()

    @property
    def bit_width(self) -> int:
        """Bits of the header, a multiple of 8."""
        return sum(field.bit_width for field in self.fields)


def controller_header(names: Names, name: str) -> ControllerHeader:
    """The header with a name ("packet_in", "packet_out"); without fields if the program has no such header."""
    listed = (names.p4info.controller_packet_metadata, names.layout.controller_packet_metadata)
    for message, layout in zip(*listed, strict=True):
        if message.preamble.name == name:
            return ControllerHeader(name, fields_of(message.metadata, layout.metadata))
    return ControllerHeader(name)


def packet_in(header: ControllerHeader, frame: bytes) -> p4runtime_pb2.PacketIn | None:
    """The message for a frame that the program sent to the CPU port; None if the frame is shorter than the header."""
    size = header.bit_width // 8
    if len(frame) < size:
        return None
    rest = int.from_bytes(frame[:size], "big")
    shift = header.bit_width
    message = p4runtime_pb2.PacketIn(payload=frame[size:])
    for field in header.fields:
        shift -= field.bit_width
        value = rest >> shift & (1 << field.bit_width) - 1
        message.metadata.add(metadata_id=field.id, value=canonical(full_width(value, field.bit_width)))
    return message


def packet_out(header: ControllerHeader, message: p4runtime_pb2.PacketOut) -> bytes:
    """The frame of a message, for the CPU port. Raises RequestError unless the metadata are exactly the header's."""
    values = _values(header, message.metadata)
    number = 0
    for field in header.fields:
        number = number << field.bit_width | values[field.id]
    return number.to_bytes(header.bit_width // 8, "big") + bytes(message.payload)


def _values(header: ControllerHeader, given: Sequence[p4runtime_pb2.PacketMetadata]) -> dict[int, int]:
    known = {field.id: field for field in header.fields}
    values: dict[int, int] = {}
    for metadata in given:
        field = known.get(metadata.metadata_id)
        if field is None:
            raise invalid(f"header {header.name} has no metadata with the id {metadata.metadata_id}")
        if field.id in values:
            raise invalid(f"header {header.name}, {field.name}: given twice")
        values[field.id] = field.parse(metadata.value, f"header {header.name}, {field.name}")
    for field in header.fields:
        if field.id not in values:
            raise invalid(f"header {header.name}: the metadata {field.name} is missing")
    return values
