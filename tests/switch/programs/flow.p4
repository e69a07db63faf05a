// SPDX-License-Identifier: Apache-2.0
//
// Control flow and calls: copy-in and copy-out, aliases, functions, return, exit, switch, loops in actions.
#include <core.p4>
#include <v1model.p4>

header in_t { bit<8> op; bit<8> a; bit<8> b; bit<8> c; }
header out_t { bit<32> x; bit<32> y; }
struct headers_t { in_t i; out_t o; }
struct metadata_t { bit<32> m; }

bit<32> twice(in bit<32> v) { return v + v; }
bit<32> pick(in bit<8> which, in bit<32> one, in bit<32> other) {
    if (which == 0) { return one; }
    return which > 5 ? other : one + other;
}
void swap(inout bit<32> l, inout bit<32> r) { bit<32> t = l; l = r; r = t; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.i); transition accept; }
}
control Inner(inout bit<32> v, in bit<32> w)(bit<32> step) {
    bit<32> count = 5;
    action bump() { count = count + step; }
    apply {
        bump();
        if (w == 3) { return; }
        v = v + w + count;
    }
}
control Leaver(inout bit<32> v) {
    apply { v = v + 1; if (v > 3) { exit; } v = v + 10; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    Inner(10) ten;
    Inner(100) hundred;
    Leaver() leaver;
    bit<32> shared_value;

    action write_both(out bit<32> first, in bit<32> second) { first = 1; meta.m = second + first; }
    action change_meta(inout bit<32> v) { v = v + 1; meta.m = 50; v = v + 1; }
    action leave() { hdr.o.y = 9; exit; }
    action early(in bit<8> a) { hdr.o.x = 5; if (a == 1) { return; } hdr.o.x = 6; }
    action outer(in bit<32> v) { shared_value = v; change_meta(meta.m); hdr.o.y = shared_value; }
    action sum_loop() {
        bit<32> total = 0;
        for (bit<32> i = 0; i < 10; i = i + 1) {
            if (i == 3) { continue; }
            if (i == 8) { break; }
            total = total + i;
        }
        hdr.o.x = total;
    }
    action nested_loop() {
        for (bit<8> i = 0; i < 4; i = i + 1) {
            for (bit<8> j = 0; j < i; j = j + 1) { hdr.o.y = (hdr.o.y << 1) + (bit<32>) j + 1; }
        }
    }
    table t { key = { hdr.i.a : exact; } actions = { leave; NoAction; } const entries = { 1 : leave(); } }

    apply {
        sm.egress_spec = 1;
        hdr.o.setValid();
        bit<32> a = (bit<32>) hdr.i.a;
        bit<32> b = (bit<32>) hdr.i.b;
        if (hdr.i.op == 0) {
            hdr.o.x = twice(a) + pick(hdr.i.c, a, b);
            swap(a, b);
            hdr.o.y = (a << 8) + b;
        } else if (hdr.i.op == 1) {
            meta.m = 3;
            write_both(meta.m, meta.m);
            hdr.o.x = meta.m;
            write_both(a, b);
            hdr.o.y = a + (meta.m << 8);
        } else if (hdr.i.op == 2) {
            meta.m = a;
            change_meta(meta.m);
            hdr.o.x = meta.m;
        } else if (hdr.i.op == 3) {
            ten.apply(a, b);
            hundred.apply(b, a);
            ten.apply(a, b);
            hdr.o.x = a;
            hdr.o.y = b;
        } else if (hdr.i.op == 4) {
            if (t.apply().hit) { hdr.o.x = 1; } else { hdr.o.x = 2; }
            hdr.o.x = hdr.o.x + 16;
        } else if (hdr.i.op == 5) {
            early(hdr.i.a);
        } else if (hdr.i.op == 6) {
            meta.m = 1;
            outer(a);
            hdr.o.x = meta.m;
        } else if (hdr.i.op == 7) {
            sum_loop();
            nested_loop();
        } else if (hdr.i.op == 8) {
            switch (hdr.i.a) {
                1:
                2: { hdr.o.x = 12; }
                3: { hdr.o.x = 3; }
                default: { hdr.o.x = 99; }
            }
        } else if (hdr.i.op == 9) {
            if (hdr.i.a == 0 || hdr.i.b / 1 == 7) { hdr.o.x = 1; }
            if (hdr.i.a != 0 && !(hdr.i.b == 7)) { hdr.o.y = 1; }
            if (hdr.i.c == 1) { return; }
            hdr.o.y = hdr.o.y + 100;
        } else if (hdr.i.op == 10) {
            hdr.o.x = a;
            leaver.apply(hdr.o.x);
            hdr.o.y = a;
        }
        hdr.i.c = hdr.i.c + 1;
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.o); packet.emit(hdr.i); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
