// SPDX-License-Identifier: Apache-2.0
//
// Packets that go round: clones of both kinds, resubmission, recirculation, field lists, truncation, instance types.
#include <core.p4>
#include <v1model.p4>

header ask_t { bit<8> what; bit<8> port; bit<8> session; bit<8> seen; }
header told_t { bit<8> instance; bit<8> kept; bit<8> lost; bit<8> inner; bit<16> rid; bit<16> length; bit<8> ingress_port; bit<8> spec; bit<8> error_seen; }
struct headers_t { ask_t ask; told_t told; }
const bit<8> kKept = 1;
enum bit<8> List { Both = 2, Inner = 3 }
struct inner_t { @field_list(List.Inner) bit<8> x; bit<8> y; }
struct metadata_t { @field_list(kKept, List.Both) bit<8> kept; bit<8> lost; inner_t inner; bit<8> parsed; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ask);
        meta.parsed = hdr.ask.seen + 1;
        transition accept;
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = (bit<9>) hdr.ask.port;
        meta.lost = 0x11;
        if (sm.instance_type == 0) {
            meta.kept = 0x40 + hdr.ask.what;
            meta.inner.x = 0x77;
            if (hdr.ask.what == 1) { clone(CloneType.I2E, (bit<32>) hdr.ask.session); }
            if (hdr.ask.what == 2) { clone_preserving_field_list(CloneType.I2E, (bit<32>) hdr.ask.session, 1); }
            if (hdr.ask.what == 3) { clone_preserving_field_list(CloneType.I2E, (bit<32>) hdr.ask.session, 2); mark_to_drop(sm); }
            if (hdr.ask.what == 4) { resubmit_preserving_field_list(kKept); }
            if (hdr.ask.what == 5) { resubmit_preserving_field_list(3); mark_to_drop(sm); }
            if (hdr.ask.what == 6) { clone(CloneType.I2E, 1); clone_preserving_field_list(CloneType.I2E, (bit<32>) hdr.ask.session, 1); resubmit_preserving_field_list(1); }
            if (hdr.ask.what == 11) { truncate(13); }
            if (hdr.ask.what == 12) { truncate(13); sm.mcast_grp = 5; }
            if (hdr.ask.what == 13) { sm.mcast_grp = 5; clone(CloneType.I2E, (bit<32>) hdr.ask.session); }
            if (hdr.ask.what == 15) { sm.priority = 1; }
            if (hdr.ask.what == 17) { resubmit_preserving_field_list(9); }
            meta.kept = meta.kept + 1;
            hdr.ask.seen = hdr.ask.seen + 1;
        } else {
            hdr.told.setValid();
            hdr.told.instance = (bit<8>) sm.instance_type;
            hdr.told.kept = meta.kept;
            hdr.told.inner = meta.inner.x;
            hdr.told.length = (bit<16>) sm.packet_length;
            hdr.told.ingress_port = (bit<8>) sm.ingress_port;
            hdr.told.rid = 0;
            hdr.told.lost = meta.parsed;
            hdr.told.spec = 0;
            hdr.told.error_seen = 0;
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        if (!hdr.told.isValid()) {
            hdr.told.setValid();
            hdr.told.instance = (bit<8>) sm.instance_type;
            hdr.told.kept = meta.kept;
            hdr.told.inner = meta.inner.x;
            hdr.told.lost = meta.parsed;
            hdr.told.rid = sm.egress_rid;
            hdr.told.length = (bit<16>) sm.packet_length;
            hdr.told.ingress_port = (bit<8>) sm.ingress_port;
            hdr.told.spec = (bit<8>) sm.egress_spec;
            hdr.told.error_seen = 0;
        }
        if (sm.instance_type == 0 && hdr.ask.seen == 1) {
            meta.kept = 0x90;
            if (hdr.ask.what == 7) { clone_preserving_field_list(CloneType.E2E, (bit<32>) hdr.ask.session, 1); }
            if (hdr.ask.what == 8) { clone(CloneType.E2E, (bit<32>) hdr.ask.session); mark_to_drop(sm); }
            if (hdr.ask.what == 9) { recirculate_preserving_field_list(List.Both); }
            if (hdr.ask.what == 10) { recirculate_preserving_field_list(2); mark_to_drop(sm); }
            if (hdr.ask.what == 14) { truncate(3); }
            if (hdr.ask.what == 16) { recirculate_preserving_field_list(2); truncate(7); }
            hdr.ask.seen = 9;
        }
    }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.ask); packet.emit(hdr.told); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
