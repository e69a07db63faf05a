// SPDX-License-Identifier: Apache-2.0
//
// Parser states: nested parsers, select on enums, signed numbers, bool and concatenations, look-ahead of structs and headers, advance, verify.
#include <core.p4>
#include <v1model.p4>
error { Bad }
enum bit<8> Kind { A = 1, B = 2, C = 0xF0 }

type bit<8> id_t;
header op_t { bit<8> code; Kind k; }
header h_t { bit<8> length; bit<8> b; }
header lbl_t { bit<7> label; bit<1> bos; }
header opt_t { id_t id; int<8> n; bit<16> clear; }
struct two_t { h_t x; h_t y; }
struct headers_t { op_t op; two_t two; two_t next; lbl_t[3] l; opt_t opt; h_t t; h_t[2] items; }
struct metadata_t { bit<8> n; bit<16> w; }
const bit<8> LIMIT = 3 * 4 - 2;
const int BIG = 1 << 40;
bit<8> twice(in bit<8> x) { return x * 2; }

parser Labels(packet_in packet, out lbl_t[3] l, inout bit<8> n) {
    state start { packet.extract(l.next); n = n + 1; transition select(l.last.bos) { 0: start; 1: accept; } }
}
parser Two(packet_in packet, out two_t two, inout bit<8> n) {
    state start { packet.extract(two.x); n = n + two.x.b; packet.extract(two.y); transition accept; }
}
parser Item(packet_in packet, out h_t h) { state start { packet.extract(h); verify(h.b != 9, error.Bad); transition accept; } }
parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    Labels() labels;
    Two() both;
    Item() once;
    Item() item;
    bit<8> local = twice(LIMIT);
    state start {
        packet.extract(hdr.op);
        transition select(hdr.op.k, hdr.op.code ++ 8w1) {
            (Kind.A, 0x0001): labels_;
            (Kind.A, 0x0101): opt;
            (Kind.B, _): two;
            (Kind.C, 0x0001 .. 0x0301): skip;
            (_, 0x0701 &&& 0x0F01): far;
            (_, 0x2001): ahead;
            (_, 0x2101): aheads;
            (_, 0x2201): twos;
            (_, 0x2301): once_;
            (_, 0x2401): items;
            default: locals;
        }
    }
    state labels_ { labels.apply(packet, hdr.l, meta.n); transition accept; }
    state opt {
        packet.extract(hdr.opt);
        transition select(hdr.opt.n, (bit<8>) hdr.opt.id > 3) {
            (8s127, true): o1;
            (8s127, false): o2;
            (8s5, _): o3;
            (_, true): reject;
        }
    }
    state o1 { meta.n = 1; transition accept; }
    state o2 { verify(hdr.opt.clear != 0, error.Bad); meta.n = 22; transition accept; }
    state o3 { meta.n = 3; transition accept; }
    state two {
        bit<16> t = packet.lookahead<bit<16>>();
        h_t h = packet.lookahead<h_t>();
        two_t w = packet.lookahead<two_t>();
        meta.n = t[15:8] ^ (t[3:0] ++ t[7:4]) ^ w.y.b;
        if (h.isValid() && w.x.isValid()) { meta.w = h.length ++ h.b; }
        packet.extract(hdr.two.x);
        packet.extract(hdr.two.y);
        transition accept;
    }
    state skip { packet.advance((bit<32>) hdr.op.code * 8); packet.extract(hdr.t); transition accept; }
    state far { meta.n = packet.lookahead<bit<24>>()[15:8]; meta.w = packet.lookahead<bit<9>>() ++ 7w3; transition accept; }
    state once_ { once.apply(packet, hdr.items[0]); transition accept; }
    state items { item.apply(packet, hdr.items[0]); item.apply(packet, hdr.items[1]); transition accept; }
    // BMv2 counts what becomes valid: a target, or p4c's header for each look-ahead that has none, once.
    state ahead { hdr.opt = packet.lookahead<opt_t>(); transition accept; }
    state aheads {
        h_t h = packet.lookahead<h_t>();
        meta.n = meta.n + packet.lookahead<h_t>().b;
        packet.extract(hdr.t);
        transition select(h.length, packet.lookahead<lbl_t>().bos) { (1, 0): aheads; default: accept; }
    }
    // What a parser that is applied to this and to that has done when the packet ends is lost.
    state twos { both.apply(packet, hdr.two, meta.n); both.apply(packet, hdr.next, meta.n); transition accept; }
    state locals { meta.n = local; local = local + 1; meta.w = (bit<16>) (BIG >> 38); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        hdr.t.setValid();
        if (sm.parser_error == error.Bad) { hdr.op.code = 0xBB; }
        else if (sm.parser_error == error.StackOutOfBounds) { hdr.op.code = 0xB0; }
        else if (sm.parser_error == error.PacketTooShort) { hdr.op.code = 0xB1; }
        else if (sm.parser_error == error.NoMatch) { hdr.op.code = 0xB2; }
        else if (sm.parser_error != error.NoError) { hdr.op.code = 0xB3; }
        hdr.t.length = meta.n;
        hdr.t.b = meta.w[15:8] ^ meta.w[7:0];
        hdr.op.k = (Kind) 8w9;
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply { if (hdr.op.code[7:1] == 0x10) { hdr.t.b = (bit<8>) sm.packet_length; } }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.op); packet.emit(hdr.t); packet.emit(hdr.two); packet.emit(hdr.next); packet.emit(hdr.l); packet.emit(hdr.opt); packet.emit(hdr.items); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
