// SPDX-License-Identifier: Apache-2.0
//
// What both kinds of slots do with a packet (slots.p4, shared.p4).

// The packet leaves from this switch, whose addresses it was sent to. What follows writes the receiver.
void make_own(inout headers_t hdr) {
    ipv4_address_t own = hdr.ipv4.dst;
    hdr.ethernet.src = hdr.ethernet.dst;
    hdr.ipv4.dst = hdr.ipv4.src;
    hdr.ipv4.src = own;
    // With this, packets of consecutive chunks are the segments of one large datagram (protocol.md, 2).
    hdr.ipv4.identification = hdr.inagg.chunk[15:0];
    hdr.ipv4.ttl = OWN_TTL;
    hdr.udp.src_port = INAGG_PORT;
    hdr.udp.checksum = 0;
}

// OR of the flags, maximum of the exponents.
void combine(inout announced_t own, in announced_t held) {
    exponent_t exponent = held[9:0] > own[9:0] ? held[9:0] : own[9:0];
    own = (own[15:10] | held[15:10]) ++ exponent;
}
