"""Packets between the controller and the program: the bytes behind a CPU port, and PacketIn and PacketOut messages.

The program sees the message's metadata as a header in front of the packet, fields in P4Info order, most significant
bit first (P4Runtime specification, "Packet I/O").
"""

from collections.abc import Sequence
from dataclasses import dataclass

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from inagg_switch.p4runtime_errors import invalid
from inagg_switch.p4runtime_values import byte_width, canonical, parse_value


@dataclass(frozen=True)
class ControllerHeader:
    """A header with @controller_header; fields are (id, name, bit width). Without fields it takes no bytes."""

    name: str
    fields: tuple[tuple[int, str, int], ...] = ()

    @property
    def bit_width(self) -> int:
        """Bits of the whole header: a multiple of 8, as of any header."""
        return sum(width for _, _, width in self.fields)


def controller_header(p4info: p4info_pb2.P4Info, name: str) -> ControllerHeader:
    """The header of that name ("packet_in", "packet_out"); one without fields when the program has none."""
    for message in p4info.controller_packet_metadata:
        if message.preamble.name == name:
            return ControllerHeader(name, tuple((m.id, m.name, m.bitwidth) for m in message.metadata))
    return ControllerHeader(name)


def packet_in(header: ControllerHeader, frame: bytes) -> p4runtime_pb2.PacketIn | None:
    """The message for a frame that left by the CPU port; None when it is shorter than the header."""
    size = header.bit_width // 8
    if len(frame) < size:
        return None
    rest = int.from_bytes(frame[:size], "big")
    shift = header.bit_width
    message = p4runtime_pb2.PacketIn(payload=frame[size:])
    for field_id, _, width in header.fields:
        shift -= width
        value = rest >> shift & (1 << width) - 1
        message.metadata.add(metadata_id=field_id, value=canonical(value.to_bytes(byte_width(width), "big")))
    return message


def packet_out(header: ControllerHeader, message: p4runtime_pb2.PacketOut) -> bytes:
    """The frame that comes in by the CPU port. Raises RequestError unless the metadata are exactly the header's."""
    values = _values(header, message.metadata)
    number = 0
    for field_id, _, width in header.fields:
        number = number << width | values[field_id]
    return number.to_bytes(header.bit_width // 8, "big") + bytes(message.payload)


def _values(header: ControllerHeader, given: Sequence[p4runtime_pb2.PacketMetadata]) -> dict[int, int]:
    known = {field_id: (name, width) for field_id, name, width in header.fields}
    values: dict[int, int] = {}
    for metadata in given:
        if metadata.metadata_id not in known:
            raise invalid(f"header {header.name} has no metadata with the id {metadata.metadata_id}")
        name, width = known[metadata.metadata_id]
        if metadata.metadata_id in values:
            raise invalid(f"header {header.name}, {name}: given twice")
        values[metadata.metadata_id] = parse_value(metadata.value, width, f"header {header.name}, {name}")
    for field_id, name, _ in header.fields:
        if field_id not in values:
            raise invalid(f"header {header.name}: the metadata {name} is missing")
    return values
