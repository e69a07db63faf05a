// SPDX-License-Identifier: Apache-2.0
//
// Arrays of base types, of structs and of arrays, as local variables.

#include <core.p4>
#include <v1model.p4>

header data_t { bit<8> a; bit<8> b; bit<16> c; }
struct headers_t { data_t data; }
struct metadata_t { }
struct pair_t { bit<8> x; bit<16> y; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.data); transition accept; }
}

control V(inout headers_t hdr, inout metadata_t meta) { apply { } }

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        bit<8>[3] bytes;
        bytes[0] = hdr.data.a;
        bytes[1] = hdr.data.b;
        bytes[2] = bytes[0] + bytes[1];
        pair_t[2] pairs;
        pairs[0].x = bytes[2];
        pairs[0].y = hdr.data.c;
        pairs[1].x = pairs[0].x ^ 0xff;
        pairs[1].y = pairs[0].y << 4;
        bit<8>[2][2] square;
        square[0][1] = pairs[1].x;
        square[1][0] = 3;
        hdr.data.a = square[0][1];
        hdr.data.b = square[1][0];
        hdr.data.c = pairs[1].y;
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;
