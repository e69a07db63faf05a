// SPDX-License-Identifier: Apache-2.0
//
// Answers pings to the aggregator (ICMP echo, RFC 792) with any payload up to the MTU. Fragmented pings are ordinary
// traffic.

control PingResponder(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action answer_ping(mac_address_t mac) {
        ipv4_address_t aggregator = hdr.ipv4.dst;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = aggregator;
        hdr.ipv4.ttl = OWN_TTL;
        hdr.icmp.type = ICMP_ECHO_REPLY;
        // The new type makes the sum of the message's 16-bit words smaller by 0x0800, so the checksum, its complement,
        // grows by as much, in one's complement arithmetic (RFC 1624). The checksum of a damaged message stays wrong.
        bit<32> sum = (bit<32>) hdr.icmp.checksum + (((bit<32>) ICMP_ECHO_REQUEST) << 8);
        hdr.icmp.checksum = sum[15:0] + sum[31:16];
        standard_metadata.egress_spec = standard_metadata.ingress_port;
        meta.answered = true;
    }

    table ping_responder {
        key = { hdr.ipv4.dst : exact @name("ip"); }
        actions = { answer_ping; NoAction; }
        size = 16;
        const default_action = NoAction();
    }

    apply {
        if (hdr.icmp.isValid() && hdr.icmp.type == ICMP_ECHO_REQUEST && hdr.icmp.code == 0
            && standard_metadata.checksum_error == 0) {
            ping_responder.apply();
        }
    }
}
