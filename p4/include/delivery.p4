// SPDX-License-Identifier: Apache-2.0
//
// Addresses a result to its receiver (protocol.md, 5.3). Runs in egress, once for every copy. It does not change
// hdr.inagg, so all copies have the same payload; if the receiver is the job's multicast address, they are equal.

control Delivery(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(512, CounterType.packets_and_bytes) result_sent;
    counter(512, CounterType.packets_and_bytes) no_receiver;
    counter(512, CounterType.packets_and_bytes) result_at_home;

    action deliver(mac_address_t mac, ipv4_address_t ip, bit<16> udp_port) {
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = ip;
        hdr.udp.dst_port = udp_port;
        result_sent.count((bit<32>) standard_metadata.egress_port);
    }

    action discard() {
        meta.dropped = true;
        no_receiver.count((bit<32>) standard_metadata.egress_port);
        mark_to_drop(standard_metadata);
    }

    table receiver {
        key = {
            meta.job : exact @name("job");
            meta.rank : exact @name("rank");
        }
        actions = { deliver; @defaultonly discard; }
        size = 8192;    // workers and jobs
        const default_action = discard();
    }

    action skip() {
        meta.dropped = true;
        result_at_home.count((bit<32>) standard_metadata.egress_port);
        mark_to_drop(standard_metadata);
    }

    // The server in a rank's process has given that rank its result already, and nobody else is behind the port
    // (protocol.md, 5.7). A result says in its rank whose server it comes from.
    table home {
        key = {
            meta.job : exact @name("job");
            meta.rank : exact @name("rank");
            standard_metadata.egress_port : exact @name("port");
        }
        actions = { skip; @defaultonly NoAction; }
        size = 4096;
        const default_action = NoAction();
    }

    apply {
        // The replication id of a multicast copy is the receiver's rank + 1; ALL_RANKS + 1 if the receiver is the job's
        // multicast address. A result sent again, or an answer, has replication id 0, and meta.rank is already its
        // receiver's.
        if (standard_metadata.egress_rid != 0) {
            // meta.rank is still that of the result.
            if (meta.slot_mask == 0) {
                home.apply();
            }
            meta.rank = (bit<8>) (standard_metadata.egress_rid - 1);
        }
        if (!meta.dropped) {
            receiver.apply();
        }
    }
}
