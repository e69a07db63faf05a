# SPDX-License-Identifier: Apache-2.0
"""inagg's packets as scapy layers: to build, dissect and show them (docs/protocol.md, 2, 5.7 and 7.3).

    from inagg_wire.layers import Beacon, Inagg, Members

The import binds Inagg to UDP datagrams from and to INAGG_PORT, and Beacon to frames of their EtherType. Servers and
their ranks use other ports (5.6): `bind_layers(UDP, Inagg, dport=PORT_OF_THE_SERVER)`.
"""

from inagg_contract.constants import (
    ETHERTYPE_BEACON,
    EXPONENT_CHECK,
    FLAG_AGAIN,
    FLAG_CONGESTED,
    INAGG_HEADER_BYTES,
    INAGG_PORT,
    INAGG_VERSION,
    KIND_DATA,
    KIND_EXPONENT,
    KIND_QUERY,
    KIND_RESULT,
    MEMBERS_BYTES,
    WORD_BYTES,
)
from inagg_contract.installation import pip_install

try:
    from scapy.fields import (
        BitEnumField,
        BitField,
        ByteField,
        ConditionalField,
        FlagsField,
        IntField,
        ShortField,
        StrFixedLenField,
        XIntField,
        XLongField,
    )
    from scapy.layers.inet import UDP
    from scapy.layers.l2 import Ether
    from scapy.packet import Packet, Raw, bind_layers
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith("scapy"):
        raise
    raise ModuleNotFoundError(
        f"inagg_wire.layers needs scapy: {pip_install('wire')}", name=error.name
    ) from error

KINDS = {
    kind | modifiers: name + suffix
    for modifiers, suffix in (
        (0, ""),
        (KIND_QUERY, " query"),
        (KIND_RESULT, " result"),
        (KIND_RESULT | KIND_QUERY, " answer"),
    )
    for kind, name in ((KIND_EXPONENT, "EXPONENT"), (KIND_DATA, "DATA"))
}
_NAMED_FLAGS = {
    0x01: "special",
    0x02: "not ready",
    0x04: "wide",
    FLAG_CONGESTED: "congested",
    FLAG_AGAIN: "again",
}
FLAGS = [_NAMED_FLAGS.get(1 << bit, "") for bit in range(6)]


class Inagg(Packet):
    """The header (2.1). Its payload is Members on the way to a server of shared slots, else the words as Raw."""

    name = "inagg"
    fields_desc = [  # noqa: RUF012 - scapy's own type
        BitField("version", INAGG_VERSION, 4),
        BitEnumField("kind", KIND_EXPONENT, 4, KINDS),
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
        """Members if the length says so (5.7), else Raw."""
        to_server = not self.kind & KIND_RESULT
        bits = MEMBERS_BYTES * (2 if self.kind & KIND_QUERY else 1)
        return Members if to_server and len(payload) % WORD_BYTES == bits else Raw


class Members(Packet):
    """The bits behind the header of a packet that goes on from shared slots (5.7)."""

    name = "inagg members"
    fields_desc = [  # noqa: RUF012 - scapy's own type
        XLongField("members", 0),
        ConditionalField(
            XLongField("waits_with", 0),
            lambda packet: packet.underlayer is not None and bool(packet.underlayer.kind & KIND_QUERY),
        ),
    ]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """The words."""
        return Raw


class Beacon(Packet):
    """A frame by which the controller watches a link between switches (7.3)."""

    name = "inagg beacon"
    fields_desc = [  # noqa: RUF012 - scapy's own type
        ShortField("out_port", 0),
        ShortField("in_port", 0),
        StrFixedLenField("secret", b"", length=16),
        ShortField("switch", 0),
    ]

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """Ethernet's padding."""
        return Raw


bind_layers(UDP, Inagg, dport=INAGG_PORT)
bind_layers(UDP, Inagg, sport=INAGG_PORT)
bind_layers(Ether, Beacon, type=ETHERTYPE_BEACON)

assert len(Inagg()) == INAGG_HEADER_BYTES

__all__ = ["FLAGS", "KINDS", "Beacon", "Inagg", "Members"]
