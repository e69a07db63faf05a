// SPDX-License-Identifier: Apache-2.0
//
// A frame goes to all other ports (group 1), or to the port in the last byte of its destination. The source says what
// egress does with copies. tests/switch/ports/fan_out.py makes the frames.
#include <core.p4>
#include <v1model.p4>

const bit<8> TO_ONE = 0x04;        // first byte of a destination: to one port
const bit<8> CHANGE_ALL = 0x06;    // first bytes of a source: write the port into every copy,
const bit<8> CHANGE_4 = 0x0A;      // into the copy for port 4,
const bit<8> CLONE_3 = 0x0E;       // or clone the copy for port 3 (session 7)
const bit<8> IS_CLONE = 99;        // last byte of a clone's source
const bit<32> EGRESS_CLONE = 2;    // instance_type

// Of several threads, number 1 has the frames of all sources below.
header ethernet_t { bit<48> dst; @steer(1) bit<8> what; bit<32> src; bit<8> who; bit<16> type; }
struct headers_t { ethernet_t eth; }
struct metadata_t { }

parser P(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t sm) {
    state start { packet.extract(h.eth); transition accept; }
}

control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t sm) {
    apply {
        if (h.eth.dst[47:40] == TO_ONE) { sm.egress_spec = h.eth.dst[8:0]; } else { sm.mcast_grp = 1; }
    }
}

control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t sm) {
    apply {
        if (sm.mcast_grp == 1 && sm.egress_port == sm.ingress_port) {
            mark_to_drop(sm);
        } else if (h.eth.what == CHANGE_ALL || h.eth.what == CHANGE_4 && sm.egress_port == 4) {
            h.eth.who = sm.egress_port[7:0];
        }
#ifdef CLONES
        if (sm.instance_type == EGRESS_CLONE) {
            h.eth.who = IS_CLONE;
        } else if (h.eth.what == CLONE_3 && sm.egress_port == 3) {
            clone_preserving_field_list(CloneType.E2E, 7, 0);
        }
#endif
    }
}

control V(inout headers_t h, inout metadata_t m) { apply { } }
control U(inout headers_t h, inout metadata_t m) { apply { } }
control D(packet_out packet, in headers_t h) { apply { packet.emit(h); } }

V1Switch(P(), V(), I(), E(), U(), D()) main;
