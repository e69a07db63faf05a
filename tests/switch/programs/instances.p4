// SPDX-License-Identifier: Apache-2.0
//
// Instances: constructor parameters (numbers with and without a width, also in tables, labels and other instances,
// enums, objects, controls), objects as parameters of apply, objects outside the blocks.
#include <core.p4>
#include <v1model.p4>

header op_t { bit<8> code; bit<8> x; }
header more_t { bit<8> y; }
struct headers_t { op_t op; more_t more; }
struct metadata_t { bit<8> n; }

register<bit<8>>(4) shared;

control Step(inout bit<8> x);

control Add(inout bit<8> x)(bit<8> by, register<bit<8>> seen) {
    apply { x = x + by; seen.write(0, x); }
}
control Twice(inout bit<8> x)(Step step) {
    apply { step.apply(x); step.apply(x); }
}
control Count(inout bit<8> x, register<bit<8>> cells, in bit<32> index) {
    action double() { x = x * 2; }
    table t {
        key = { x : exact; }
        actions = { double; NoAction; }
        const default_action = NoAction();
        const entries = { 5 : double(); }
    }
    apply {
        bit<8> before;
        cells.read(before, index);
        cells.write(index, before + 1);
        t.apply();
        x = x + before;
    }
}
control Answer(inout bit<8> x)(bit<8> wanted, bit<32> room, bool low) {
    action set(bit<8> value) { x = value; }
    table t {
        key = { x : ternary; }
        actions = { set; }
        default_action = set(low ? wanted - 2 : 0);
        size = room + 1;
        const entries = { wanted + 1 : set(wanted); 0x80 &&& wanted : set(~wanted); }
    }
    apply {
        switch (x) {
            wanted: { x = 100; }
            9: { x = 101; }
            default: { t.apply(); }
        }
    }
}
control Scale(inout bit<8> x)(int by) {
    more_t[3] shelf;
    Answer((bit<8>) by, by * 2, by > 1) answer;
    apply {
        shelf[0].setValid(); shelf[0].y = 1;
        shelf[1].setValid(); shelf[1].y = 2;
        shelf[2].setValid(); shelf[2].y = 3;
        if (by == 3) { x = x << by; }
        x = x + by;
        x = x ^ (bit<8>) (by * 16 - 1);
        x = x + shelf[by - 1].y;
        if (x == by) { answer.apply(x); }
    }
}
control Nested(inout bit<8> x)(bit<8> base, HashAlgorithm algorithm, CounterType unit) {
    Answer(base + 1, (bit<32>) base[3:0], true) answer;
    counter(2, unit) seen;
    apply {
        answer.apply(x);
        hash(x, algorithm, 8w0, { x }, 16w256);
        seen.count(1);
    }
}
parser Rest(packet_in packet, out more_t more)(bit<8> wanted) {
    state start { transition select(packet.lookahead<bit<8>>()) { wanted: take; default: accept; } }
    state take { packet.extract(more); transition accept; }
}
parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    Rest(0xAA) rest;
    state start {
        packet.extract(hdr.op);
        transition select(hdr.op.code) { 9: more; default: accept; }
    }
    state more { rest.apply(packet, hdr.more); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    register<bit<8>>(4) own;
    Add(3, own) three;
    Add(10, shared) ten;
    Twice(three) six;
    Twice(ten) twenty;
    Count() count_own;
    Count() count_shared;
    Answer(7, 2, true) seven;
    Answer(0x30, 2, false) other;
    Scale(1) once;
    Scale(3) thrice;
    Nested(0x24, HashAlgorithm.identity, CounterType.packets_and_bytes) nested;
    apply {
        sm.egress_spec = 1;
        if (hdr.op.code == 1) { six.apply(hdr.op.x); }
        if (hdr.op.code == 2) { twenty.apply(hdr.op.x); }
        if (hdr.op.code == 3) { count_own.apply(hdr.op.x, own, 1); }
        if (hdr.op.code == 4) { count_shared.apply(hdr.op.x, shared, 1); }
        if (hdr.op.code == 5) { own.read(hdr.op.x, 0); }
        if (hdr.op.code == 7) { seven.apply(hdr.op.x); }
        if (hdr.op.code == 8) { other.apply(hdr.op.x); }
        if (hdr.op.code == 10) { nested.apply(hdr.op.x); }
        if (hdr.op.code == 11) { once.apply(hdr.op.x); }
        if (hdr.op.code == 12) { thrice.apply(hdr.op.x); }
        if (hdr.op.code == 6) { shared.read(hdr.op.x, 0); }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.more); packet.emit(hdr.op); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
