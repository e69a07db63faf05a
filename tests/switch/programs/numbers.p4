// SPDX-License-Identifier: Apache-2.0
//
// Numbers without a width: parameters of type int, casts to int, their operators, slices of constants as keys, and
// functions and controls that depend on a number.

#include <core.p4>
#include <v1model.p4>

header in_t { bit<8> what; bit<8> a; int<8> b; bit<16> c; }
header out_t { bit<8> x; bit<8> y; bit<16> z; bit<16> w; }
struct headers_t { in_t i; out_t o; }
struct metadata_t { }

const bit<8> K = 0x14;

bit<8> plus(in bit<8> value, int much) { return value + (bit<8>) (much * 2 - 1); }
bit<8> twice(in bit<8> value, int much) { return plus(plus(value, much), much + 1); }
bit<8> at_most(in bit<8> value, int most) {
    if (most > 100) { return value; }
    if (value > most) { return most; }
    return value;
}
bit<16> shifted(in bit<16> value, int by) { return value << by; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.i); transition accept; }
}

control V(inout headers_t hdr, inout metadata_t meta) { apply { } }

control Add(inout bit<16> value, int much) {
    action add() { value = value + (bit<16>) (much << 1); }
    apply { if (value != 0) { add(); } }
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    Add() add_five;
    action found(bit<8> y) { hdr.o.y = y; }
    table keys {
        key = { K[3:2]: exact; hdr.i.a: exact; K: exact; 0x1f[3:0]: exact; }
        actions = { found; NoAction; }
        const entries = { (1, 7, 0x14, 15): found(0x70); (2, 7, 0x14, 15): found(0x71); }
    }
    apply {
        sm.egress_spec = 1;
        hdr.o.setValid();
        hdr.o.x = plus(hdr.i.a, 3);
        hdr.o.y = twice(hdr.i.a, -3);
        hdr.o.z = shifted(hdr.i.c, 3);
        hdr.o.w = hdr.i.c;
        if (hdr.i.what == 1) {
            hdr.o.x = at_most(hdr.i.a, 40);
            hdr.o.y = at_most(hdr.i.a, 400);
            add_five.apply(hdr.o.w, 5);
            add_five.apply(hdr.o.z, 5);
        } else if (hdr.i.what == 2) {
            bit<8> three = 3;
            hdr.o.y = (bit<8>) ((int) three - 5);
            keys.apply();
        }
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;
