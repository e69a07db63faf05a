// SPDX-License-Identifier: Apache-2.0
//
// The traffic manager: unicast, drop, multicast, replication ids, what survives into egress, and that a copy sees
// nothing of what egress did to another.
#include <core.p4>
#include <v1model.p4>

header ask_t { bit<8> what; bit<16> port; bit<16> group; bit<8> egress_what; }
header told_t { bit<32> instance_type; bit<32> packet_length; bit<16> rid; bit<16> ingress_port; bit<16> egress_port;
                bit<16> egress_spec; bit<16> group; bit<8> kept; }
header block_t { bit<512> value; }
struct headers_t { ask_t ask; block_t[2] kept; block_t changed; told_t told; }
struct metadata_t { bit<8> kept; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ask);
        transition select(hdr.ask.egress_what) { 8: blocks; default: accept; }
    }
    state blocks {
        packet.extract(hdr.kept.next);
        packet.extract(hdr.kept.next);
        packet.extract(hdr.changed);
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        meta.kept = meta.kept + 7;
        if (hdr.ask.what[0:0] == 1) { mark_to_drop(sm); }
        if (hdr.ask.what[1:1] == 1) { sm.egress_spec = hdr.ask.port[8:0]; }
        if (hdr.ask.what[2:2] == 1) { sm.mcast_grp = hdr.ask.group; }
        if (hdr.ask.what[3:3] == 1) { mark_to_drop(sm); }
        if (hdr.ask.what[4:4] == 1) { hdr.told.setValid(); }
        if (hdr.ask.what[5:5] == 1) { exit; }
        if (hdr.ask.what[6:6] == 1) {
            sm.enq_qdepth = 5; sm.deq_qdepth = 6; sm.instance_type = 9; sm.packet_length = 3; sm.egress_rid = 4;
        }
        if (hdr.ask.egress_what == 8) { hdr.kept[1].value = hdr.kept[1].value + hdr.kept[0].value; }
        meta.kept = meta.kept + 1;
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        hdr.told.setValid();
        hdr.told.instance_type = sm.instance_type;
        hdr.told.packet_length = sm.packet_length;
        hdr.told.rid = sm.egress_rid;
        hdr.told.ingress_port = (bit<16>) sm.ingress_port;
        hdr.told.egress_port = (bit<16>) sm.egress_port;
        hdr.told.egress_spec = (bit<16>) sm.egress_spec;
        hdr.told.group = sm.mcast_grp;
        hdr.told.kept = meta.kept;
        if (hdr.ask.what[6:6] == 1) { hdr.told.kept = (bit<8>) sm.enq_qdepth + (bit<8>) sm.deq_qdepth; }
        if (hdr.ask.egress_what == 1) { mark_to_drop(sm); }
        if (hdr.ask.egress_what == 2 && sm.egress_port == 2) { mark_to_drop(sm); }
        if (hdr.ask.egress_what == 3) { sm.egress_spec = 3; }
        if (hdr.ask.egress_what == 4) { exit; }
        if (hdr.ask.egress_what == 8 && sm.egress_rid == 20) { hdr.changed.value = hdr.changed.value + 1; }
        if (hdr.ask.egress_what == 8 && sm.egress_rid == 30) { hdr.changed.setInvalid(); }
        meta.kept = 0;
        hdr.ask.setInvalid();
    }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.told); packet.emit(hdr.ask); packet.emit(hdr.changed); packet.emit(hdr.kept); }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
