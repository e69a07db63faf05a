// SPDX-License-Identifier: Apache-2.0
//
// Headers that are not valid, stacks, and variables that nobody has written.
#include <core.p4>
#include <v1model.p4>

header op_t { bit<8> code; }
header h_t { bit<8> a; bit<16> b; }
header out_t { bit<8> r; bit<8> s; bit<16> t; bit<8> flags; }
struct inner_t { bit<8> x; bool y; }
struct headers_t { op_t op; out_t o; h_t g; h_t h; h_t[4] s; }
struct mixed_t { h_t h; bit<8> n; }
struct metadata_t { inner_t i; inner_t j; inner_t k; inner_t l; mixed_t mixed; h_t hidden; h_t other; bit<8> n; }

void writes_out(out h_t p) { p.a = 0x77; }
void makes_out(out h_t p) { p.setValid(); p.a = 0x77; }
bit<8> sees(in h_t p) { return p.a; }
bit<8> changes(inout h_t p) { bit<8> was = p.a; p.a = was + 1; return was; }
h_t gives(in h_t p) { h_t made = p; made.a = made.a + 1; return made; }

parser Adds(packet_in packet, in inner_t from, inout inner_t to) {
    state start { to.x = to.x + from.x; transition accept; }
}
parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    Adds() adds;
    state start {
        packet.extract(hdr.op); packet.extract(hdr.g); packet.extract(hdr.h);
        meta.k.x = 3; adds.apply(packet, meta.k, meta.l); adds.apply(packet, meta.l, meta.k);
        transition items;
    }
    state items {
        transition select(packet.lookahead<bit<8>>()) { 0: done; default: item; }
    }
    state item { packet.extract(hdr.s.next); meta.n = meta.n + 1; transition items; }
    state done { packet.advance(8); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control WritesOut(out h_t p) { apply { p.a = 0x77; } }
control Sees(in h_t p, out bit<8> v) { apply { v = p.a; } }
control Both(in h_t p, inout h_t q, out bit<8> v) { apply { q.a = 7; v = p.a; } }
control Raises(inout h_t p, out bit<8> v) { apply { v = p.a; p.a = 7; } }
control Half(out inner_t p) { apply { p.x = 7; } }
control Mixes(out mixed_t p) { apply { p.h.setValid(); p.h = { 7, 8 }; } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    action reads_out(out bit<8> p) { meta.n = 1; p = meta.n; }
    WritesOut() control_out;
    Sees() control_sees;
    Both() both;
    Raises() raises_once;
    Raises() raises;
    Half() half;
    Mixes() mixes;
    action action_out(out h_t p) { p.a = 0x77; }
    action action_sees(in h_t p, out bit<8> v) { v = p.a; }
    action swaps(inout h_t p, inout h_t q) { h_t kept = p; p = q; q = kept; }
    apply {
        sm.egress_spec = 1;
        hdr.o.setValid();
        meta.mixed.n = 5;
        bit<8> never;
        h_t local;
        switch (hdr.op.code) {
            1: { hdr.g.setInvalid(); hdr.o.r = hdr.g.a; hdr.o.t = hdr.g.b; }
            2: { hdr.g.setInvalid(); hdr.g.a = 7; hdr.o.r = hdr.g.a; hdr.o.t = hdr.g.b; }
            3: { hdr.g.setInvalid(); hdr.g.a = 7; hdr.g.setValid(); hdr.o.r = hdr.g.a; hdr.o.t = hdr.g.b; }
            4: { hdr.g.setValid(); hdr.o.r = hdr.g.a; }
            5: { hdr.g.setInvalid(); hdr.h = hdr.g; hdr.o.r = hdr.h.a; }
            6: { if (hdr.g == hdr.h) { hdr.o.r = 1; } hdr.g.setInvalid(); if (hdr.g == hdr.h) { hdr.o.s = 1; }
                 hdr.h.setInvalid(); if (hdr.g == hdr.h) { hdr.o.t = 1; } }
            7: { hdr.o.r = never; hdr.o.s = meta.i.x; if (meta.i.y) { hdr.o.t = 1; } }
            8: { if (meta.hidden.isValid()) { hdr.o.r = 1; } meta.hidden.setValid(); meta.hidden.a = hdr.g.a;
                 hdr.h = meta.hidden; }
            9: { local.setValid(); local = { 1, 2 }; hdr.g = local; if (local.isValid()) { hdr.o.r = 1; } }
            10: { swaps(hdr.g, hdr.h); }
            11: { hdr.h.setInvalid(); swaps(hdr.g, hdr.h); }
            12: { meta.i = { hdr.g.a, true }; meta.j = meta.i; meta.i.x = 0; hdr.o.r = meta.j.x;
                  if (meta.i == meta.j) { hdr.o.s = 1; } if (meta.j.y) { hdr.o.s = hdr.o.s + 2; } }
            13: { reads_out(hdr.o.r); }
            14: { hdr.s.push_front(1); hdr.s[0].setValid(); hdr.s[0].a = 0xEE; }
            15: { hdr.s.pop_front(1); }
            16: { hdr.s.push_front(2); }
            17: { hdr.s.pop_front(3); }
            18: { hdr.s[1].setInvalid(); }
            19: { hdr.s[3] = hdr.s[0]; hdr.s[2].a = 0x55; }
            20: { hdr.s.push_front(1); hdr.s[0] = hdr.g; hdr.g.setInvalid(); }
            21: { hdr.op = { 99 }; hdr.h = { a = 1, b = 0x203 }; hdr.g.setInvalid(); hdr.g = { 4, 5 }; }
            // An `out` header is invalid; what is written to it while it is so comes back from a control only.
            23: { writes_out(hdr.g); hdr.o.r = hdr.g.a; hdr.o.t = hdr.g.b; }
            24: { makes_out(hdr.g); }
            25: { action_out(hdr.g); hdr.o.r = hdr.g.a; hdr.o.t = hdr.g.b; }
            26: { control_out.apply(hdr.g); hdr.o.r = hdr.g.a; hdr.o.t = hdr.g.b; }
            27: { hdr.s.push_front(9); }
            28: { hdr.s.pop_front(9); }
            // Of a header that is invalid, functions and actions see nothing, and controls the fields.
            29: { hdr.g.setInvalid(); hdr.o.r = sees(hdr.g); hdr.o.s = changes(hdr.g); hdr.o.t = (bit<16>) hdr.g.a; }
            30: { hdr.g.setInvalid(); hdr.o.r = gives(hdr.g).a; action_sees(hdr.g, hdr.o.s); }
            31: { hdr.g.setInvalid(); h_t copied = hdr.g; hdr.o.r = copied.a; control_sees.apply(hdr.g, hdr.o.s); }
            32: { hdr.o.r = sees(hdr.g); hdr.o.s = changes(hdr.g); hdr.h = gives(hdr.g); }
            // An instance that is applied to this and to that works on copies of it; so do arguments that overlap.
            33: { hdr.o.r = meta.k.x; hdr.o.s = meta.l.x; }
            34: { hdr.g.setInvalid(); both.apply(hdr.g, hdr.g, hdr.o.r); hdr.o.s = hdr.g.a; }
            35: { hdr.g.setInvalid(); raises_once.apply(hdr.g, hdr.o.r); hdr.o.s = hdr.g.a; }
            36: { hdr.g.setInvalid(); raises.apply(hdr.g, hdr.o.r); hdr.o.s = hdr.g.a; }
            37: { raises.apply(hdr.h, hdr.o.r); }
            38: { hdr.o.r = meta.mixed.n; }
            39: { half.apply(meta.i); hdr.o.s = meta.i.x; }
            40: { half.apply(meta.j); hdr.o.s = meta.j.x; }
            41: { mixes.apply(meta.mixed); hdr.o.r = meta.mixed.n; hdr.h = meta.mixed.h; }
            22: { hdr.o.r = (bit<8>) sm.packet_length; hdr.g.setInvalid(); }
        }
        hdr.o.flags[0:0] = (bit<1>) hdr.g.isValid();
        hdr.o.flags[1:1] = (bit<1>) hdr.h.isValid();
        hdr.o.flags[4:4] = (bit<1>) hdr.s[0].isValid();
        hdr.o.flags[5:5] = (bit<1>) hdr.s[1].isValid();
        hdr.o.flags[6:6] = (bit<1>) hdr.s[2].isValid();
        hdr.o.flags[7:7] = (bit<1>) hdr.s[3].isValid();
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
