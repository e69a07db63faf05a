// SPDX-License-Identifier: Apache-2.0
//
// Ordinary traffic (design D9): a learning Ethernet switch. It learns stations in a register array, indexed by a hash,
// without a round trip to the controller. A collision floods frames, but never delivers one to a wrong port.

// Stations remembered; a power of two.
const bit<16> STATION_BUCKETS = 4096;

control L2(inout headers_t hdr, in metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(512, CounterType.packets_and_bytes) not_ethernet;
    counter(512, CounterType.packets_and_bytes) own_port;    // the destination is on the port that the frame came in on

    register<bit<64>>((bit<32>) STATION_BUCKETS) stations;    // port above the 48 bits of the MAC address

    action bucket_of(in mac_address_t mac, out bit<32> bucket) {
        bucket = (bit<32>) ((mac[15:0] ^ mac[31:16] ^ mac[47:32]) & (STATION_BUCKETS - 1));
    }

    action learn() {
        bit<32> bucket;
        bucket_of(hdr.ethernet.src, bucket);
        stations.write(bucket, 7w0 ++ standard_metadata.ingress_port ++ hdr.ethernet.src);
    }

    action forward() {
        bit<32> bucket;
        bit<64> station;
        bucket_of(hdr.ethernet.dst, bucket);
        stations.read(station, bucket);
        bool known = station[47:0] == hdr.ethernet.dst && hdr.ethernet.dst[40:40] == 0;
        standard_metadata.egress_spec = known ? station[56:48] : 0;
        standard_metadata.mcast_grp = known ? 16w0 : FLOOD_GROUP;
    }

    // Hosts that are bound to a port (5.4) are in this table, so no other host can make the switch forget them.
    action to_port(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    table station {
        key = { hdr.ethernet.dst : exact @name("mac"); }
        actions = { to_port; NoAction; }
        size = 1024;
        const default_action = NoAction();
    }

    apply {
        if (!hdr.ethernet.isValid()) {
            not_ethernet.count((bit<32>) standard_metadata.ingress_port);
            mark_to_drop(standard_metadata);
        } else {
            // A station never sets the group bit of its source address (IEEE 802.3, 3.2.3).
            if (!meta.bound && hdr.ethernet.src[40:40] == 0) {
                @stripe(0) {
                    learn();
                }
            }
            if (!station.apply().hit) {
                @stripe(0) {
                    forward();
                }
            }
            if (standard_metadata.mcast_grp == 0 &&
                standard_metadata.egress_spec == standard_metadata.ingress_port) {
                own_port.count((bit<32>) standard_metadata.ingress_port);
                mark_to_drop(standard_metadata);
            }
        }
    }
}

// Split horizon: no copy of a flooded frame leaves by the port it came in on. Answers of the switch (ARP, ping) do.
control SplitHorizon(inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        if (!meta.answered && standard_metadata.egress_port == standard_metadata.ingress_port) {
            meta.dropped = true;
            mark_to_drop(standard_metadata);
        }
    }
}
