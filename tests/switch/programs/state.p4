// SPDX-License-Identifier: Apache-2.0
//
// Registers and counters, inside and outside their bounds; state lives from packet to packet.
#define V1MODEL_VERSION 20200408
#include <core.p4>
#include <v1model.p4>

header in_t { bit<8> op; bit<8> index; bit<48> value; }
struct headers_t { in_t i; }
struct metadata_t { bit<48> m; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.i); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    register<bit<48>, bit<32>>(8) cells;
    register<bit<48>, bit<48>>(8) far;
    register<bit<5>, bit<32>>(4) small;
    counter<bit<32>>(4, CounterType.packets_and_bytes) seen;
    counter<bit<32>>(4, CounterType.packets) seen_packets;
    apply {
        sm.egress_spec = 1;
        bit<32> index = (bit<32>) hdr.i.index;
        seen.count(index);
        seen_packets.count(index);
        if (hdr.i.op == 0) {
            cells.write(index, hdr.i.value);
        } else if (hdr.i.op == 1) {
            cells.read(hdr.i.value, index);
        } else if (hdr.i.op == 2) {
            cells.read(meta.m, index);
            meta.m = meta.m + hdr.i.value;
            cells.write(index, meta.m);
            hdr.i.value = meta.m;
        } else if (hdr.i.op == 3) {
            small.write(index, hdr.i.value[4:0]);
            bit<5> back = 0;
            small.read(back, index);
            hdr.i.value = (bit<48>) back;
        } else if (hdr.i.op == 4) {
            // BMv2 takes 32 bits of an index.
            far.write(hdr.i.value, 48w99);
            far.read(hdr.i.value, (bit<48>) index);
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.i); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
