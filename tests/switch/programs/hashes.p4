// SPDX-License-Identifier: Apache-2.0
//
// hash() with every algorithm, over whole and odd fields, headers that are not there, bases and ranges.
#include <core.p4>
#include <v1model.p4>

header ask_t { bit<8> algorithm; bit<16> base; bit<32> most; bit<8> has_odd; }
header body_t { bit<32> a; bit<16> b; bit<8> c; }
header odd_t { bit<3> x; bit<13> y; bit<72> z; }
header told_t { bit<64> hash; bit<16> narrow; }
struct headers_t { ask_t ask; body_t body; odd_t odd; told_t told; }
struct pair_t { bit<7> left; bit<9> right; }
struct metadata_t { pair_t pair; bool flag; tuple<bit<16>, bit<8>> two; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ask);
        packet.extract(hdr.body);
        transition select(hdr.ask.has_odd) { 1: odd; default: accept; }
    }
    state odd { packet.extract(hdr.odd); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    apply {
        sm.egress_spec = 2;
        hdr.told.setValid();
        hdr.told.hash = 0;
        hdr.told.narrow = 0;
        meta.pair.left = 0x55;
        meta.pair.right = hdr.body.b[8:0];
        meta.flag = hdr.body.c[0:0] == 1;
        if (hdr.ask.algorithm == 0) {
            hash(hdr.told.hash, HashAlgorithm.crc32, hdr.ask.base, { hdr.body.a, hdr.body.b, hdr.body.c }, hdr.ask.most);
        } else if (hdr.ask.algorithm == 1) {
            hash(hdr.told.hash, HashAlgorithm.crc32_custom, hdr.ask.base, { hdr.body.a, hdr.body.b, hdr.body.c }, hdr.ask.most);
        } else if (hdr.ask.algorithm == 2) {
            hash(hdr.told.hash, HashAlgorithm.crc16, hdr.ask.base, { hdr.body.a, hdr.body.b, hdr.body.c }, hdr.ask.most);
        } else if (hdr.ask.algorithm == 3) {
            hash(hdr.told.hash, HashAlgorithm.crc16_custom, hdr.ask.base, { hdr.body.a, hdr.body.b, hdr.body.c }, hdr.ask.most);
        } else if (hdr.ask.algorithm == 4) {
            hash(hdr.told.hash, HashAlgorithm.identity, hdr.ask.base, { hdr.body.a, hdr.body.b, hdr.body.c }, hdr.ask.most);
        } else if (hdr.ask.algorithm == 5) {
            hash(hdr.told.hash, HashAlgorithm.csum16, hdr.ask.base, { hdr.body.a, hdr.body.b, hdr.body.c }, hdr.ask.most);
        } else if (hdr.ask.algorithm == 6) {
            hash(hdr.told.hash, HashAlgorithm.xor16, hdr.ask.base, { hdr.body.a, hdr.body.b, hdr.body.c }, hdr.ask.most);
        } else if (hdr.ask.algorithm == 7) {
            hash(hdr.told.hash, HashAlgorithm.crc32, hdr.ask.base, { hdr.odd.x, hdr.body.c, hdr.odd.y, hdr.odd.z }, hdr.ask.most);
        } else if (hdr.ask.algorithm == 8) {
            hash(hdr.told.hash, HashAlgorithm.xor16, hdr.ask.base, { hdr.odd.x, hdr.body.c }, hdr.ask.most);
        } else if (hdr.ask.algorithm == 9) {
            hash(hdr.told.hash, HashAlgorithm.identity, hdr.ask.base, { hdr.odd.x, hdr.odd.y, hdr.odd.z }, hdr.ask.most);
        } else if (hdr.ask.algorithm == 10) {
            hash(hdr.told.hash, HashAlgorithm.crc16, hdr.ask.base, hdr.body, hdr.ask.most);
        } else if (hdr.ask.algorithm == 11) {
            hash(hdr.told.hash, HashAlgorithm.crc16, hdr.ask.base, meta.pair, hdr.ask.most);
        } else if (hdr.ask.algorithm == 12) {
            hash(hdr.told.narrow, HashAlgorithm.crc32, hdr.ask.base, { 16w0x1234, hdr.body.a, hdr.body.c + 1 }, hdr.ask.most);
        } else if (hdr.ask.algorithm == 13) {
            hash(hdr.told.hash, HashAlgorithm.csum16, hdr.ask.base, { hdr.odd.x, hdr.body.c, hdr.odd.y }, hdr.ask.most);
        } else if (hdr.ask.algorithm == 14) {
            hash(hdr.told.hash, HashAlgorithm.crc16, hdr.ask.base, hdr.odd, hdr.ask.most);
        } else if (hdr.ask.algorithm == 15) {
            meta.two = { hdr.body.b, hdr.body.c };
            hash(hdr.told.narrow, HashAlgorithm.crc16, 16w0, meta.two, 32w0x10000);
        } else if (hdr.ask.algorithm == 16) {
            hash(hdr.told.hash, HashAlgorithm.crc16, hdr.ask.base, { 8w9, hdr.odd, hdr.body }, hdr.ask.most);
        } else if (hdr.ask.algorithm == 17) {
            hash(hdr.told.hash, HashAlgorithm.csum16, hdr.ask.base, { hdr.odd, hdr.body.a, hdr.ask.has_odd }, hdr.ask.most);
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.told); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
