# SPDX-License-Identifier: Apache-2.0
"""The inagg header for scapy: to build, dissect and show packets."""

from scapy.fields import ByteField, FlagsField, IntField, ShortField, XByteEnumField, XIntField, XShortField
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, bind_layers

PORT = 0x4941
KINDS = {0x01: "EXPONENT", 0x02: "DATA", 0x81: "EXPONENT result", 0x82: "DATA result"}


class Inagg(Packet):
    """Protocol 2.1; the words of a DATA packet are its payload."""

    name = "inagg"
    fields_desc = [  # noqa: RUF012 - scapy's own type
        ByteField("version", 1),
        XByteEnumField("kind", 0x01, KINDS),
        ShortField("job", 0),
        ByteField("rank", 0),
        FlagsField("flags", 0, 8, ["special"]),
        XShortField("exponent", 0),
        IntField("epoch", 0),
        IntField("chunk", 0),
        XIntField("checksum", 0),
    ]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        return Raw


bind_layers(UDP, Inagg, dport=PORT)
bind_layers(UDP, Inagg, sport=PORT)

__all__ = ["IP", "KINDS", "PORT", "UDP", "Ether", "Inagg", "Raw"]
