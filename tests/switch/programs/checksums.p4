// SPDX-License-Identifier: Apache-2.0
//
// csum16 over fields of headers and constants, verified and updated, with and without payload.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<4> a; bit<4> b; bit<8> c; bit<16> sum; bit<24> d; bit<8> e; }
header g_t { bit<16> x; bit<8> y; bit<16> sum; }
header seen_t { bit<8> wrong; }
struct headers_t { h_t h; g_t g; seen_t seen; }
struct metadata_t { bit<8> m; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.h); transition select(hdr.h.a) { 1: more; default: accept; } }
    state more { packet.extract(hdr.g); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.h.b != 0, { hdr.h.a, hdr.h.b, hdr.h.c, hdr.h.d, hdr.h.e }, hdr.h.sum,
                        HashAlgorithm.csum16);
        verify_checksum(true, { hdr.g.x, 8w0, hdr.g.y }, hdr.g.sum, HashAlgorithm.csum16);
    }
}
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply { sm.egress_spec = 1; hdr.seen.setValid(); hdr.seen.wrong = (bit<8>) sm.checksum_error; }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply { if (hdr.h.e == 0xee) { truncate(15); } }  // and so much of the payload is summed
}
control C(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.h.c == 0, { hdr.h.a, hdr.h.b, hdr.h.c, hdr.h.d, hdr.h.e, hdr.g.x }, hdr.h.sum,
                        HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.g.isValid() && hdr.h.c != 0, { hdr.g.x, hdr.g.y, hdr.h.c }, hdr.g.sum,
                                     HashAlgorithm.csum16);
    }
}
control D(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.seen); packet.emit(hdr.h); packet.emit(hdr.g); }
}
V1Switch(P(), V(), I(), E(), C(), D()) main;
