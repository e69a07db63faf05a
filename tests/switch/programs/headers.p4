// SPDX-License-Identifier: Apache-2.0
//
// Validity, copies, comparisons and stacks of headers.
#include <core.p4>
#include <v1model.p4>

header op_t { bit<8> code; }
header pair_t { bit<8> a; bit<4> hi; bit<4> lo; }
header flags_t { bit<1> valid_p; bit<1> valid_q; bit<1> equal; bit<1> different; bit<4> zero; bit<8> n; bit<8> value; }
struct headers_t { op_t op; pair_t p; pair_t q; pair_t[3] s; flags_t f; }
struct metadata_t { bit<8> n; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.op);
        transition select(hdr.op.code) {
            0x20 &&& 0xF0: stack;
            0x30 .. 0x3F: only_q;
            default: both;
        }
    }
    state both { packet.extract(hdr.p); packet.extract(hdr.q); transition accept; }
    state only_q { packet.extract(hdr.q); transition accept; }
    state stack {
        packet.extract(hdr.s.next);
        meta.n = meta.n + 1;
        transition select(hdr.s.last.a) { 0: accept; default: stack; }
    }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        hdr.f.setValid();
        if (hdr.op.code == 1) { hdr.p.setInvalid(); }
        if (hdr.op.code == 2) { hdr.p = hdr.q; }
        if (hdr.op.code == 3) { hdr.p.setInvalid(); hdr.q = hdr.p; }
        if (hdr.op.code == 4) { hdr.p.setInvalid(); hdr.p.setValid(); hdr.p.a = 0x77; }
        if (hdr.op.code == 5) { hdr.p.setValid(); hdr.p.lo = 15; }
        if (hdr.op.code == 6) { hdr.p = { 1, 2, 3 }; }
        if (hdr.op.code == 0x31) { hdr.p.setValid(); }
        if (hdr.op.code == 0x32) { hdr.p = { 9, 9, 9 }; }
        if (hdr.op.code == 0x33) { hdr.p = hdr.q; hdr.q.a = 0; }
        if (hdr.op.code == 0x21) { hdr.s.pop_front(1); }
        if (hdr.op.code == 0x22) { hdr.s.push_front(1); }
        if (hdr.op.code == 0x23) { hdr.s.push_front(1); hdr.s[0].setValid(); hdr.s[0].a = 0xEE; }
        if (hdr.op.code == 0x24) { hdr.s[1].setInvalid(); }
        if (hdr.op.code == 0x25) { hdr.s.pop_front(3); }
        if (hdr.op.code == 0x26) { hdr.s.push_front(2); }
        if (hdr.op.code == 7) { hdr.p = hdr.q.a == 0 ? { 1, 2, 3 } : { hdr.q.a, 4, 5 }; }
        if (hdr.op.code == 0x27) { hdr.s[2] = hdr.s[0]; }
        if (hdr.p.isValid()) { hdr.f.valid_p = 1; }
        if (hdr.q.isValid()) { hdr.f.valid_q = 1; }
        if (hdr.p.isValid() && hdr.q.isValid()) {
            if (hdr.p == hdr.q) { hdr.f.equal = 1; }
            if (hdr.p != hdr.q) { hdr.f.different = 1; }
        }
        hdr.f.n = meta.n;
        if (sm.parser_error == error.StackOutOfBounds) { hdr.f.value = 3; }
        if (sm.parser_error == error.PacketTooShort) { hdr.f.value = 1; }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.f); packet.emit(hdr.op); packet.emit(hdr.p); packet.emit(hdr.q); packet.emit(hdr.s); }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
