// SPDX-License-Identifier: Apache-2.0
//
// Explicit congestion notification (RFC 3168; protocol.md, 6.2). An IPv4 packet that meets a long queue leaves with a mark
// in its header, be it one of the protocol or ordinary traffic, as that of servers. The switch or server that adds it to a
// sum makes the mark a flag of the sum, so all workers learn of it.

// Runs in ingress, on packets that are admitted.
control HearCongestion(inout headers_t hdr, in metadata_t meta) {
    action keep() {
        hdr.inagg.announced = hdr.inagg.announced | (FLAG_CONGESTED ++ 10w0);
        hdr.inagg.announced_check = hdr.inagg.announced_check | (FLAG_CONGESTED ++ 10w0);
    }

    apply {
        if ((hdr.ipv4.tos & ECN_BITS) == ECN_CONGESTED) {
            if (!meta.query) {
                keep();
            }
            // What leaves is a packet of this switch's own.
            hdr.ipv4.tos = hdr.ipv4.tos & ~ECN_BITS | ECN_CAPABLE;
        }
    }
}

// Runs in egress, once for every copy. It does not change hdr.inagg, so all copies have the same payload.
control MarkCongestion(inout headers_t hdr, inout metadata_t meta, in standard_metadata_t standard_metadata) {
    counter(512, CounterType.packets_and_bytes) congestion_marked;

    action mark_beyond(bit<19> packets) {
        meta.congested = standard_metadata.deq_qdepth > packets;
    }

    table queue {
        key = { standard_metadata.egress_port : exact @name("port"); }
        actions = { mark_beyond; @defaultonly NoAction; }
        size = 512;
        const default_action = NoAction();
    }

    apply {
        if (hdr.ipv4.isValid() && hdr.ipv4.ihl == 5 && (hdr.ipv4.tos & ECN_BITS) != 0) {
            queue.apply();
            if (meta.congested) {
                hdr.ipv4.tos = hdr.ipv4.tos | ECN_CONGESTED;
                congestion_marked.count((bit<32>) standard_metadata.egress_port);
            }
        }
    }
}
