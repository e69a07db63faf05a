# SPDX-License-Identifier: Apache-2.0
"""The inagg header for scapy: to build, dissect and show packets."""

from scapy.fields import BitEnumField, BitField, ByteField, FlagsField, IntField, ShortField, XIntField
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_layers

PORT = 0x4941
KINDS = {
    0x1: "EXPONENT",
    0x2: "DATA",
    0x5: "EXPONENT query",
    0x6: "DATA query",
    0x9: "EXPONENT result",
    0xA: "DATA result",
    0xD: "EXPONENT answer",
    0xE: "DATA answer",
}
FLAGS = ["special", "not ready", "wide", "", "congested", "again"]
EXPONENT_CHECK = 341


class Inagg(Packet):
    """Protocol 2.1; the words of a DATA packet are its payload."""

    name = "inagg"
    fields_desc = [  # noqa: RUF012 - scapy's own type
        BitField("version", 4, 4),
        BitEnumField("kind", 0x1, 4, KINDS),
        ByteField("rank", 0),
        ShortField("job", 0),
        FlagsField("flags", 0, 6, FLAGS),
        BitField("exponent", 0, 10),
        FlagsField("flags_check", 0, 6, FLAGS),
        BitField("exponent_check", EXPONENT_CHECK, 10),
        IntField("epoch", 0),
        IntField("chunk", 0),
        XIntField("checksum", 0),
    ]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        return Raw


bind_layers(UDP, Inagg, dport=PORT)
bind_layers(UDP, Inagg, sport=PORT)

__all__ = ["IP", "KINDS", "PORT", "UDP", "Ether", "Inagg", "Raw"]
