// SPDX-License-Identifier: Apache-2.0
//
// Parts of headers, stacks and structs: copies of invalid ones, arguments that overlap, exit and return inside calls, pushes and pops.
#include <core.p4>
#include <v1model.p4>
header h_t { bit<8> a; bit<8> b; }
struct headers_t { h_t o; h_t h; h_t g; h_t[3] s; }
struct inner_t { bit<8> p; bit<8> q; }
struct metadata_t { bit<8> x; inner_t i; }
parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.o); transition select(hdr.o.a) { 0x80 &&& 0x80: st; default: next; } }
    state st { packet.extract(hdr.s.next); packet.extract(hdr.s.next); transition accept; }
    state next { packet.extract(hdr.h); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Sub(inout h_t h, in bit<8> how, out bit<8> res) {
    apply {
        res = 1;
        if (how == 1) { return; }
        res = 2;
        if (how == 2) { exit; }
        h.a = h.a + 1;
        res = 3;
    }
}
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    Sub() sub;
    bit<8> shared = 5;
    action swap(inout bit<8> a, inout bit<8> b) { bit<8> t = a; a = b; b = t + 1; }
    action leave(inout bit<8> a, out bit<8> b) { a = a + 1; b = 9; if (a == 3) { exit; } a = a + 1; }
    action touch(inout bit<8> a) { shared = shared + 1; a = a + shared; }
    apply {
        sm.egress_spec = 1;
        if (hdr.o.a == 1) { hdr.o.b = hdr.g.a; }
        else if (hdr.o.a == 2) { hdr.h.setInvalid(); hdr.o.b = hdr.h.a; }
        else if (hdr.o.a == 3) { hdr.h = hdr.g; hdr.o.b = hdr.h.a; if (hdr.h == hdr.g) { hdr.o.a = 33; } }
        else if (hdr.o.a == 4) { hdr.h.setInvalid(); hdr.h.a = 7; hdr.o.b = hdr.h.a; hdr.h.setValid(); }
        else if (hdr.o.a == 5) { swap(hdr.o.b, hdr.o.b); }
        else if (hdr.o.a == 6) { swap(hdr.h.a, hdr.h.b); }
        else if (hdr.o.a == 7) { leave(hdr.o.b, hdr.h.b); hdr.h.a = 0xEE; }
        else if (hdr.o.a == 8) { touch(shared); hdr.o.b = shared; }
        else if (hdr.o.a == 9) { sub.apply(hdr.h, hdr.o.b, hdr.h.b); hdr.o.b = 0x77; }
        else if (hdr.o.a == 10) { bit<8> u; hdr.o.b = u; u = 3; }
        else if (hdr.o.a == 11) { hdr.h.b = hdr.s[hdr.o.b].a; }
        else if (hdr.o.a == 12) { meta.i = { 3, 4 }; inner_t j = meta.i; if (j == meta.i && j.p == 3) { hdr.o.b = j.q; } }
        else if (hdr.o.a == 13) { meta.i = { q = hdr.o.b, p = 1 }; meta.i = { meta.i.q, meta.i.p }; hdr.o.b = meta.i.p; hdr.h.a = meta.i.q; }
        else if (hdr.o.a == 0x80) { hdr.s.push_front(1); }
        else if (hdr.o.a == 0x81) { hdr.s.pop_front(1); }
        else if (hdr.o.a == 0x82) { hdr.s.push_front(2); hdr.s[0].setValid(); hdr.s[0].a = 1; }
        else if (hdr.o.a == 0x83) { hdr.s.pop_front(5); }
        else if (hdr.o.a == 0x84) { hdr.s[2] = hdr.s[0]; hdr.s[0].setInvalid(); }
        else if (hdr.o.a == 0x85) { if (hdr.s[0] == hdr.s[1]) { hdr.o.b = 1; } if (hdr.s[2] == hdr.g) { hdr.o.b = hdr.o.b + 2; } }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
