// SPDX-License-Identifier: Apache-2.0
//
// Types and values: enums, errors, typedefs, constants, structs and tuples, wide and signed numbers, compile-time values.
#include <core.p4>
#include <v1model.p4>

typedef bit<8> byte_t;
type bit<16> Port_t;
enum Colour { Red, Green, Blue }
enum bit<8> Kind { One = 1, Two = 2, Far = 0x80 }
error { TooOdd, TooEven }
const byte_t STEP = 3;
const bit<16> MASK = (1 << 12) - 1;
const int BIG = 1 << 100;
const bool YES = STEP == 3 && BIG > 5;
struct pair_t { byte_t a; bit<16> b; }
struct nest_t { pair_t p; Kind k; bool f; }
header in_t { byte_t code; byte_t a; byte_t b; bit<16> c; int<16> d; Kind k; bit<128> w; }
header out_t { byte_t r; bit<16> s; int<16> t; bit<128> w; Kind k; bool yes; bit<7> rest; }
struct headers_t { in_t i; out_t o; }
struct metadata_t { Colour colour; error e; nest_t n; Port_t port; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.i);
        transition select(hdr.i.k) { Kind.One: one; Kind.Far: far; default: accept; }
    }
    state one { meta.e = error.TooOdd; transition accept; }
    state far { verify(hdr.i.a < 10, error.TooEven); meta.e = error.TooEven; transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        hdr.o.setValid();
        if (hdr.i.code == 1) {
            meta.colour = Colour.Green;
            if (hdr.i.a == 1) { meta.colour = Colour.Blue; }
            if (meta.colour == Colour.Blue) { hdr.o.r = 1; } else if (meta.colour != Colour.Red) { hdr.o.r = 2; }
        } else if (hdr.i.code == 2) {
            if (meta.e == error.TooOdd) { hdr.o.r = 1; } else if (meta.e == error.TooEven) { hdr.o.r = 2; }
            if (sm.parser_error == error.TooEven) { hdr.o.s = 1; } else if (sm.parser_error == error.NoError) { hdr.o.s = 2; }
        } else if (hdr.i.code == 3) {
            hdr.o.k = hdr.i.k;
            if (hdr.i.k == Kind.Two) { hdr.o.k = Kind.Far; hdr.o.r = (byte_t) hdr.i.k; }
            hdr.o.s = (bit<16>) (bit<8>) Kind.Far + 1;
        } else if (hdr.i.code == 4) {
            hdr.o.r = STEP * 2 + hdr.i.a;
            hdr.o.s = hdr.i.c & MASK;
            hdr.o.w = (bit<128>) BIG + (bit<128>) (bit<100>) (BIG - 1);
            hdr.o.yes = YES;
        } else if (hdr.i.code == 5) {
            meta.n = { { hdr.i.a, hdr.i.c }, Kind.Two, true };
            pair_t p = meta.n.p;
            p.a = p.a + 1;
            hdr.o.yes = p == meta.n.p;
            meta.n.p = p;
            hdr.o.r = meta.n.p.a;
            hdr.o.s = meta.n.p.b;
            hdr.o.k = meta.n.k;
            hdr.o.rest[0:0] = (bit<1>) (p == { b = hdr.i.c, a = hdr.i.a + 1 });
        } else if (hdr.i.code == 6) {
            hdr.o.t = hdr.i.d - 1;
            hdr.o.yes = hdr.i.d < 0;
            hdr.o.r = (byte_t) (bit<16>) (hdr.i.d >> 4);
            hdr.o.s = (bit<16>) (hdr.i.d |+| 0x7000);
            hdr.o.w = (bit<128>) (int<128>) hdr.i.d;
        } else if (hdr.i.code == 7) {
            hdr.o.w = hdr.i.w * 3 - (bit<128>) hdr.i.c;
            hdr.o.r = (hdr.i.w[127:120] ++ hdr.i.w[3:0]) == 0 ? 8w1 : 8w2;
            hdr.o.s = hdr.i.w[71:56];
        } else if (hdr.i.code == 8) {
            hdr.o.w = hdr.i.w << hdr.i.a;
            hdr.o.s = hdr.i.c >> hdr.i.a;
            hdr.o.t = hdr.i.d >> hdr.i.a;
            hdr.o.r = 8w1 << hdr.i.a;
        } else if (hdr.i.code == 9) {
            tuple<bit<8>, bit<16>> t = { hdr.i.a, hdr.i.c };
            tuple<bit<8>, bit<16>> u = { hdr.i.b, hdr.i.c };
            hdr.o.yes = t == u;
            hdr.o.r = t[0];
            hdr.o.s = t[1];
        } else if (hdr.i.code == 10) {
            meta.port = (Port_t) hdr.i.c;
            hdr.o.s = (bit<16>) meta.port + 1;
            hdr.o.yes = meta.port == (Port_t) 5;
            hdr.o.r = hdr.i.a & 0xF | hdr.i.b << 4 ^ 0x11;
            hdr.o.rest = (bit<7>) (hdr.i.a ++ hdr.i.b)[12:3];
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
