// SPDX-License-Identifier: Apache-2.0
//
// A clone of a packet becomes a report about it: headers parsed again, the field list kept, a header in front.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<8> tos; bit<16> length; bit<16> id; bit<16> fragment; bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> src; bit<32> dst;
}
header ports_t { bit<16> src; bit<16> dst; }
header report_t { bit<32> src; bit<32> dst; bit<32> estimate; bit<16> left; bit<16> two; bit<8> one; bit<8> seen; }
struct headers_t { report_t report; ethernet_t ethernet; ipv4_t ipv4; ports_t ports; }

struct flow_t { bit<32> src; bit<32> dst; bit<8> protocol; bit<16> sport; bit<16> dport; }
struct metadata_t {
    flow_t flow;
    @field_list(1) bit<32> estimate;
    @field_list(1, 2) bit<8> seen;
    @field_list(1) flow_t reported;
    bit<16> left;
    bit<16> two;
    bit<8> one;
}

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) { 0x0800: ipv4; default: accept; }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.protocol) { 6: ports; 17: ports; default: accept; }
    }
    state ports { packet.extract(hdr.ports); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 4;
        if (hdr.ipv4.isValid()) {
            flow_t flow = { hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.protocol, 0, 0 };
            if (hdr.ports.isValid()) { flow.sport = hdr.ports.src; flow.dport = hdr.ports.dst; }
            meta.estimate = flow.src;
            hash(meta.left, HashAlgorithm.xor16, 16w0, { flow.src, flow.dst, flow.protocol }, 32w0x10000);
            meta.two = 2;
            meta.one = 1;
            meta.seen = 1;
            meta.reported = flow;
            if (flow.dst != 0) { clone_preserving_field_list(CloneType.I2E, 7, 1); }
            meta.flow = flow;
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        if (sm.instance_type == 1) {
            hdr.report.setValid();
            hdr.report.src = meta.reported.src;
            hdr.report.dst = meta.reported.dst;
            hdr.report.estimate = meta.estimate;
            hdr.report.left = meta.left;
            hdr.report.seen = meta.seen;
            truncate(50);
        } else if (hdr.ipv4.isValid()) {
            hdr.ipv4.id = meta.left;
            hdr.ipv4.fragment = meta.two;
            hdr.ipv4.tos = meta.one;
        }
    }
}
control U(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.report); packet.emit(hdr.ethernet); packet.emit(hdr.ipv4); packet.emit(hdr.ports); }
}
V1Switch(P(), V(), I(), E(), U(), D()) main;
