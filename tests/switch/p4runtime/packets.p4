// SPDX-License-Identifier: Apache-2.0
//
// Packets to and from the controller, for P4Runtime's tests: what the controller sends leaves by the port that its
// header names, what hosts send goes to the controller behind a header that tells where it came in.
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<3> reason;
    bit<4> unused;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> unused;
}

struct headers_t {
    packet_in_t in_header;
    packet_out_t out_header;
}

struct metadata_t {
}

parser PacketParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: from_controller;
            default: accept;
        }
    }
    state from_controller {
        packet.extract(hdr.out_header);
        transition accept;
    }
}

control PacketVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control PacketIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        if (hdr.out_header.isValid()) {
            standard_metadata.egress_spec = hdr.out_header.egress_port;
            hdr.out_header.setInvalid();
        } else {
            hdr.in_header.setValid();
            hdr.in_header.ingress_port = standard_metadata.ingress_port;
            hdr.in_header.reason = 5;
            hdr.in_header.unused = 0;
            standard_metadata.egress_spec = CPU_PORT;
        }
    }
}

control PacketEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { }
}

control PacketCompute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control PacketDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.in_header);
        packet.emit(hdr.out_header);
    }
}

V1Switch(PacketParser(), PacketVerify(), PacketIngress(), PacketEgress(), PacketCompute(), PacketDeparser()) main;
