// SPDX-License-Identifier: Apache-2.0
//
// Parser errors: the pipeline goes on with what has been extracted. verify, lookahead, advance, subparsers, select, value
// sets.
error { Mine, Other } // before those of core.p4
#include <core.p4>
#include <v1model.p4>

header op_t { bit<8> code; bit<8> n; }
header body_t { bit<16> x; bit<16> y; }
header seen_t { bit<8> error_code; bit<8> op; bit<8> body; bit<8> mark; bit<16> peeked; bit<16> n; }
struct headers_t { op_t op; body_t body; body_t[2] more; seen_t seen; }
struct metadata_t { bit<8> mark; bit<16> peeked; bit<16> n; }

struct pair_t { bit<8> n; bit<16> x; }

parser Body(packet_in packet, inout body_t body, inout bit<8> mark) {
    state start {
        packet.extract(body);
        mark = mark + 16;
        transition select(body.x) { 0xDEAD: reject; 0xBEEF: wrong; default: accept; }
    }
    state wrong { verify(body.y == 0, error.Other); transition accept; }
}

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    Body() body;
    value_set<bit<8>>(4) some;
    value_set<pair_t>(4) pairs;
    bit<8> local = 3;
    state start {
        packet.extract(hdr.op);
        meta.mark = 1;
        transition select(hdr.op.code, hdr.op.n) {
            (1, _): take_body;
            (2, 5 .. 9): peek;
            (2, 0x80 &&& 0xC0): skip;
            (3, 0): verify_it;
            (3, 1): local_variable;
            (4, _): loop;
            (5, 1): peek_far;
            (5, 2): skip_far;
            (6, _): no_match;
            (7, 0): reject;
            (7, 1): peek_struct;
            (8, _): look_for_one;
        }
    }
    state look_for_one { transition select(hdr.op.n) { some: found_one; default: look_for_two; } }
    state look_for_two {
        packet.extract(hdr.body);
        transition select(hdr.op.n, hdr.body.x) { pairs: found_two; default: accept; }
    }
    state found_one { meta.mark = 0x11; transition accept; }
    state found_two { meta.mark = 0x22; transition accept; }
    state take_body { body.apply(packet, hdr.body, meta.mark); meta.mark = meta.mark + 1; transition accept; }
    state peek { meta.peeked = packet.lookahead<bit<16>>(); packet.extract(hdr.body); transition accept; }
    state skip { packet.advance(16); packet.extract(hdr.body); transition accept; }
    state verify_it {
        packet.extract(hdr.body);
        verify(hdr.body.x != 7, error.Mine);
        meta.mark = 2;
        transition accept;
    }
    state local_variable {
        local = local + hdr.op.n;
        meta.mark = local;
        transition accept;
    }
    state loop {
        packet.extract(hdr.more.next);
        meta.n = hdr.more.last.x;
        transition select(hdr.more.last.y) { 0: accept; default: loop; }
    }
    state peek_far { meta.peeked = packet.lookahead<bit<48>>()[15:0]; transition accept; }
    state skip_far { packet.advance(8 * 100); transition accept; }
    state no_match { transition select(hdr.op.n) { 1: accept; } }
    state peek_struct { body_t ahead = packet.lookahead<body_t>(); meta.peeked = ahead.y; transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        hdr.seen.setValid();
        if (sm.parser_error == error.NoError) { hdr.seen.error_code = 0; }
        if (sm.parser_error == error.PacketTooShort) { hdr.seen.error_code = 1; }
        if (sm.parser_error == error.NoMatch) { hdr.seen.error_code = 2; }
        if (sm.parser_error == error.StackOutOfBounds) { hdr.seen.error_code = 3; }
        if (sm.parser_error == error.Mine) { hdr.seen.error_code = 100; }
        if (sm.parser_error == error.Other) { hdr.seen.error_code = 101; }
        if (hdr.op.isValid()) { hdr.seen.op = 1; }
        if (hdr.body.isValid()) { hdr.seen.body = 1; }
        hdr.seen.mark = meta.mark;
        hdr.seen.peeked = meta.peeked;
        hdr.seen.n = meta.n;
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.seen); packet.emit(hdr.op); packet.emit(hdr.body); packet.emit(hdr.more); }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
