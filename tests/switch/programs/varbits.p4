// SPDX-License-Identifier: Apache-2.0
//
// varbit: extract with a size and its errors, copies, comparison, setValid, emit, fields before and after, in stacks and unions.
#include <core.p4>
#include <v1model.p4>

header op_t { bit<8> code; bit<8> size; }
header option_t { bit<4> kind; bit<4> n; varbit<32> data; bit<8> tail; }
header odd_t { bit<4> left; varbit<32> data; bit<4> right; }
header text_t { varbit<24> data; }
header_union either_t { option_t option; text_t text; }
header seen_t { bit<8> error_code; bit<8> equal; bit<8> length; }
struct headers_t { op_t op; option_t a; option_t b; odd_t odd; text_t[2] texts; either_t either; seen_t seen; }
struct metadata_t { bit<8> n; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.op);
        transition select(hdr.op.code) {
            0: one;
            1: two;
            2: odd;
            3: texts;
            4: either;
            5: one;
            6: one;
            7: two;
            8: huge;
            default: accept;
        }
    }
    state one { packet.extract(hdr.a, (bit<32>) hdr.op.size); transition accept; }
    state huge { packet.extract(hdr.a, (bit<32>) hdr.op.size << 24); transition accept; }
    state two {
        packet.extract(hdr.a, (bit<32>) hdr.op.size);
        packet.extract(hdr.b, (bit<32>) hdr.a.n * 8);
        transition accept;
    }
    state odd { packet.extract(hdr.odd, (bit<32>) hdr.op.size); transition accept; }
    state texts {
        packet.extract(hdr.texts.next, (bit<32>) hdr.op.size);
        packet.extract(hdr.texts.next, 8);
        transition accept;
    }
    state either { packet.extract(hdr.either.text, (bit<32>) hdr.op.size); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 1;
        hdr.seen.setValid();
        if (sm.parser_error == error.PacketTooShort) { hdr.seen.error_code = 1; }
        if (sm.parser_error == error.HeaderTooShort) { hdr.seen.error_code = 4; }
        if (sm.parser_error == error.ParserInvalidArgument) { hdr.seen.error_code = 6; }
        if (hdr.a.isValid() && hdr.b.isValid()) {
            if (hdr.a.data == hdr.b.data) { hdr.seen.equal = 1; }
            if (hdr.a == hdr.b) { hdr.seen.equal = hdr.seen.equal + 2; }
        }
        if (hdr.op.code == 5) { hdr.b = hdr.a; hdr.b.tail = hdr.b.tail + 1; }
        if (hdr.op.code == 6) { hdr.a.setInvalid(); hdr.a.setValid(); hdr.a.kind = 7; }
        if (hdr.op.code == 7) { hdr.b.data = hdr.a.data; }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply { hdr.seen.length = (bit<8>) sm.packet_length; }
}
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.seen);
        packet.emit(hdr.op);
        packet.emit(hdr.a);
        packet.emit(hdr.b);
        packet.emit(hdr.odd);
        packet.emit(hdr.texts);
        packet.emit(hdr.either);
    }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
