// SPDX-License-Identifier: Apache-2.0
//
// Tuples, lists, op-assignment, order of evaluation, generic structs, look-ahead of structs, extract(_), names that hide
// types, entries with priorities, stacks of unions.
#include <core.p4>
#include <v1model.p4>

@odd(it's "anything" at all # 'even this)
header op_t { bit<8> code; bit<8> x; bit<8> y; }
header one_t { bit<8> v; }
header two_t { bit<16> v; }
header_union u_t { one_t one; two_t two; }
header pair_t<T> { T first; T second; }
struct both_t<T> { pair_t<T> left; pair_t<T> right; }
struct ahead_t { bit<4> a; bit<12> b; bit<8> c; }
struct headers_t { op_t op; both_t<bit<8>> both; one_t[4] s; u_t[2] u; }
struct metadata_t { tuple<bit<8>, bool> t; bit<8> n; }

T pick<T>(in bool first, in T a, in T b) { if (first) { return a; } return b; }
bit<8> next(inout bit<8> x) { bit<8> was = x; x += 1; return was; }

parser hdr(packet_in packet, out headers_t h, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(h.op);
        transition select(h.op.code) {
            1 .. 5: stack;
            10: stack;
            12 .. 13: stack;
            6: ahead;
            7: skip;
            8: unions;
            9: pair;
            default: accept;
        }
    }
    state stack {
        packet.extract(h.s.next);
        packet.extract(h.s.next);
        packet.extract(h.s.next);
        packet.extract(h.s.next);
        transition accept;
    }
    state ahead {
        ahead_t a = packet.lookahead<ahead_t>();
        meta.n = a.b[11:4] ^ a.c;
        packet.lookahead<bit<40>>();
        meta.t = { 7, true };
        transition accept;
    }
    state skip { packet.extract<two_t>(_); packet.extract(h.s.next); transition accept; }
    state unions { packet.extract(h.u.next.one); packet.extract(h.u.next.two); transition another; }
    state another {
        transition select(h.op.x, h.op.y) { (1, 2): third; _: accept; }
    }
    state third { packet.extract(h.u.next.one); transition accept; }
    state pair { packet.extract(h.both.left); packet.extract(h.both.right); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    action set(bit<8> v) { hdr.op.y = v; }
    table ordered {
        key = { hdr.op.x : ternary; }
        actions = { set; }
        default_action = set(0);
        largest_priority_wins = false;
        priority_delta = 10;
        entries = {
            priority = 30: 0x10 &&& 0xF0 : set(1);
                           0x11          : set(2);
            priority = 20: 0x12          : set(3);
        }
    }
    table nothing { key = { } actions = { } }
    apply {
        sm.egress_spec = 1;
        nothing.apply();
        if (hdr.op.code == 1) {
            // The index is computed once, and before the value.
            hdr.s[next(hdr.op.x) & 3].v += next(hdr.op.x);
        } else if (hdr.op.code == 2) {
            hdr.s[next(hdr.op.x) & 3].v = hdr.op.x;
        } else if (hdr.op.code == 3) {
            tuple<bit<8>, bit<8>> t = { next(hdr.op.x), hdr.op.x };
            tuple<bit<8>, bit<8>> w = t;
            hdr.op.y = t[0] + w[1];
            if (t == w && t == { hdr.op.x - 1, hdr.op.x }) { hdr.op.code = 0x33; }
        } else if (hdr.op.code == 4) {
            hdr.s[0].v[3:0] = hdr.op.x[7:4];
            hdr.s[1].v[4+:4] |= 4w9;
            hdr.s[2].v <<= 2;
            hdr.s[3].v |-|= 0x20;
            hdr.op.x |+|= 0xF0;
        } else if (hdr.op.code == 5) {
            ordered.apply();
        } else if (hdr.op.code == 6) {
            hdr.op.x = meta.n;
            if (meta.t[1]) { hdr.op.y = meta.t[0]; }
        } else if (hdr.op.code == 8) {
            // BMv2 leaves the unions that come in as they were.
            if (hdr.op.x == 3) { hdr.u.pop_front(1); }
            if (hdr.op.x == 4) { hdr.u.push_front(1); }
            if (hdr.op.x == 5) { hdr.u.push_front(2); }
            if (hdr.op.x == 6) { hdr.u.pop_front(2); hdr.u[0].two.setValid(); }
        } else if (hdr.op.code == 11) {
            // The first conditional is the condition of the second.
            bit<5> b = hdr.op.x[4:0];
            bool last = b[0:0] == 1 ? b[1:1] == 1 : b[2:2] == 1 ? b[3:3] == 1 : b[4:4] == 1;
            hdr.op.y = last ? 8w1 : 0;
        } else if (hdr.op.code == 12) {
            one_t fourth = hdr.s[3];
            one_t invalid;
            hdr.s = { fourth, hdr.s[1], invalid, ... };
            hdr.op.x = hdr.op.x << 8s1;
        } else if (hdr.op.code == 13) {
            hdr.s = { ... };
            if ({ hdr.op.x, hdr.op.y } == { 1, 2 }) { hdr.op.x = 0x11; }
            if ({ 3, { hdr.op.y, true } } != { hdr.op.x, { 4, hdr.op.x == 3 } }) { hdr.op.y = 0x22; }
        } else if (hdr.op.code == 10) {
            hdr.s.pop_front(1);
            hdr.op.y = hdr.s[3].v;  // invalid
        } else if (hdr.op.code == 9) {
            if (hdr.both.left == hdr.both.right) { hdr.op.y = 1; }
            hdr.op.x = pick(hdr.op.y == 1, hdr.both.left.second, 8w9);
            hdr.both.right = pick<pair_t<bit<8>>>(hdr.op.y == 1, hdr.both.right, hdr.both.left);
            hdr.both.left.first |= hdr.both.right.second;
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.op); packet.emit(hdr.both.left); packet.emit(hdr.s); packet.emit(hdr.u); }
}
V1Switch(hdr(), V(), I(), E(), C(), D()) main;
