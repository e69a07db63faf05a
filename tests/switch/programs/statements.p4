// SPDX-License-Identifier: Apache-2.0
//
// Statements: switch on values, loops in actions, op-assignment, return and exit, functions and actions with directions,
// annotations of blocks.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<8> code; bit<8> a; bit<8> b; int<8> c; bit<16> d; }
struct headers_t { h_t h; }
struct metadata_t { bit<8> x; bit<8> trace; }
enum bit<8> Code { Add = 1, Sub = 2, Loop = 3 }

bit<8> twice(in bit<8> value) { return value + value; }
bit<8> count_up(inout bit<8> counter) { counter = counter + 1; return counter; }
void sort(inout bit<8> low, inout bit<8> high) {
    if (low <= high) { return; }
    bit<8> kept = low;
    low = high;
    high = kept;
}
bit<8> early(in bit<8> value) {
    if (value == 0) { return 0xEE; }
    if (value < 10) { return value; }
    return 10;
}

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.h); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply @note { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    bit<8> shared = 5;
    action both(inout bit<8> p, inout bit<8> q) @note("adds") { p = p + 1; q = q + 2; }
    action reads_shared(inout bit<8> p) { p = 9; meta.x = shared; shared = 7; }
    action makes(out bit<8> p, in bit<8> q) { p = q ^ 0xFF; }
    action sum_to(in bit<8> n, inout bit<8> sum) {
        for (bit<8> i = 0; i < 8; i = i + 1) {
            if (i >= n) { break; }
            if (i == 2) { continue; }
            sum = sum + i;
        }
    }
    action leaves(in bit<8> n) {
        meta.trace = meta.trace | 1;
        if (n == 1) { return; }
        meta.trace = meta.trace | 2;
        if (n == 2) { exit; }
        meta.trace = meta.trace | 4;
    }
    apply {
        sm.egress_spec = 1;
        switch (hdr.h.code) {
            1: @note { hdr.h.a += hdr.h.b; hdr.h.d -= 1; }
            2:
            3: { hdr.h.a |+|= 200; hdr.h.b |-|= 200; hdr.h.c |+|= 100; hdr.h.d <<= 3; }
            4: { hdr.h.a[7:4] = hdr.h.b[3:0]; hdr.h.d[4+:8] = hdr.h.a; hdr.h.d[0:0] = 1; }
            5: { both(hdr.h.a, hdr.h.a); }
            6: { reads_shared(shared); hdr.h.a = shared; hdr.h.b = meta.x; }
            7: { makes(hdr.h.a, hdr.h.a); }
            8: { sum_to(hdr.h.a, hdr.h.b); }
            9: { sort(hdr.h.a, hdr.h.b); hdr.h.d = (bit<16>) twice(early(hdr.h.a)); }
            10: { hdr.h.d = count_up(hdr.h.a) ++ count_up(hdr.h.a); }
            11: { bool r = hdr.h.b != 0 && count_up(hdr.h.a) == 1 || count_up(hdr.h.b) == 1; if (r) { hdr.h.d = 1; } }
            12: {
                leaves(hdr.h.a);
                meta.trace = meta.trace | 8;
                if (hdr.h.b == 1) { return; }
                meta.trace = meta.trace | 16;
            }
            13: { hdr.h.c = -hdr.h.c; hdr.h.d = (bit<16>) (int<16>) hdr.h.c; }
            16: { bit<8> own = hdr.h.a; makes(own, own); hdr.h.b = own; }
            20: { hdr.h.a = hdr.h.a / 4; hdr.h.d = hdr.h.d % 16w64; hdr.h.b /= 1; }
            21: { hdr.h.d = (bit<16>) (0 / count_up(hdr.h.a)); }
            22: { hdr.h.b = hdr.h.a > 7 ? 3 : hdr.h.a; }
            14: { hdr.h.c = hdr.h.c >> 2; hdr.h.a = hdr.h.a >> 2; hdr.h.d = hdr.h.d >> hdr.h.b; }
            default: {
                switch (hdr.h.a) {
                    0: { hdr.h.b = 1; }
                    1: { switch (hdr.h.b) { 7: { hdr.h.b = 2; } default: { hdr.h.b = 3; } } }
                }
            }
        }
        hdr.h.d = hdr.h.d | 0x8000;
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply { if (meta.trace != 0) { hdr.h.d[7:0] = meta.trace; } }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
