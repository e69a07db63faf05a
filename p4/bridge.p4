// SPDX-License-Identifier: Apache-2.0
//
// A learning Ethernet switch, without sums: the ordinary traffic of inagg.p4 alone. The testbed runs it on gloo's own
// links where links are impaired, because a Linux bridge impairs nothing. FLOOD_GROUP must have all ports.

#include <core.p4>
#include <v1model.p4>

#include "include/constants.p4"
#include "include/headers.p4"
#include "include/l2.p4"

parser BridgeParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control BridgeVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control BridgeIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    L2() l2;

    apply {
        l2.apply(hdr, meta, standard_metadata);
    }
}

control BridgeEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    SplitHorizon() split_horizon;

    apply {
        split_horizon.apply(meta, standard_metadata);
    }
}

control BridgeComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control BridgeDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
    }
}

V1Switch(BridgeParser(), BridgeVerifyChecksum(), BridgeIngress(), BridgeEgress(), BridgeComputeChecksum(),
         BridgeDeparser()) main;
