// SPDX-License-Identifier: Apache-2.0
//
// Wide fields of headers and wide registers: read, written and added in every order.

#include <core.p4>
#include <v1model.p4>

header request_t { bit<8> operation; bit<8> index; }
header numbers_t { bit<512> a; bit<512> b; }
header shifted_t { bit<4> before; bit<512> c; bit<4> behind; }
struct headers_t { request_t request; numbers_t numbers; shifted_t shifted; }
struct metadata_t { bit<512> kept; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.request);
        packet.extract(hdr.numbers);
        packet.extract(hdr.shifted);
        transition accept;
    }
}

control V(inout headers_t hdr, inout metadata_t meta) { apply { } }

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    register<bit<512>>(4) cells;
    bit<32> index;

    action add_cell() {
        bit<512> held;
        cells.read(held, index);
        hdr.numbers.a = hdr.numbers.a + held;
        cells.write(index, hdr.numbers.a);
    }

    action exchange() {
        bit<512> held;
        cells.read(held, index);
        cells.write(index, hdr.numbers.a);
        hdr.numbers.a = held;
    }

    action twice() {
        bit<512> held;
        cells.read(held, index);
        hdr.numbers.b = held;
        cells.read(held, 3);
        hdr.numbers.a = held;
    }

    action increment(inout bit<512> number) {
        number = number + 1;
    }

    apply {
        sm.egress_spec = 1;
        index = (bit<32>) hdr.request.index;
        switch (hdr.request.operation) {
            0: { hdr.numbers.a = hdr.numbers.a + hdr.numbers.b; }
            1: { hdr.numbers.a = hdr.numbers.a + hdr.numbers.a; }
            2: { hdr.numbers.b = hdr.numbers.a; hdr.numbers.a = hdr.numbers.a + hdr.numbers.b; }
            3: { cells.write(index, hdr.numbers.a); }
            4: { add_cell(); }
            5: { exchange(); }
            6: { cells.read(hdr.numbers.a, index); }
            7: { hdr.numbers.a = hdr.numbers.a < hdr.numbers.b ? hdr.numbers.a : 5; }
            8: { increment(hdr.numbers.a); }
            9: { hdr.numbers.a[15:8] = hdr.request.index; }
            10: { if (hdr.numbers.a == hdr.numbers.b) { hdr.numbers.a = 1; } else { hdr.numbers.b = 2; } }
            11: { meta.kept = hdr.numbers.b; hdr.numbers.b = hdr.numbers.a; hdr.numbers.a = meta.kept; }
            12: { hdr.shifted.c = hdr.shifted.c + hdr.numbers.a; hdr.numbers.a = hdr.shifted.c; }
            13: { twice(); }
            14: { hdr.numbers.setInvalid(); hdr.numbers.setValid(); hdr.numbers.a = 3; hdr.numbers.b = 4; }
            15: { hdr.numbers.a = hdr.numbers.a - hdr.numbers.b; cells.write(index, hdr.numbers.b); }
        }
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;
