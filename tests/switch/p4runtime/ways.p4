// SPDX-License-Identifier: Apache-2.0
//
// Selectors and a digest, for P4Runtime's tests: what comes from the controller goes back with the number of the way that
// it has taken.
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;

header flow_t {
    bit<8> key;
    bit<32> flow;
    bit<16> more;
    bit<8> way;
}

struct headers_t {
    flow_t flow;
}

struct learn_t {
    bit<32> flow;
    bit<9> port;
    bit<16> more;
}

struct metadata_t {
}

parser WaysParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                  inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.flow);
        transition accept;
    }
}

control WaysVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control WaysIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action_selector(HashAlgorithm.crc16, 16, 14) first_ways;
    action_selector(HashAlgorithm.crc32, 16, 5) second_ways;

    action go(bit<8> way) {
        hdr.flow.way = way;
    }
    table first {
        key = {
            hdr.flow.key : exact;
            hdr.flow.flow : selector;
            hdr.flow.more : selector;
        }
        actions = { go; NoAction; }
        implementation = first_ways;
    }
    table second {
        key = {
            hdr.flow.key : lpm;
            hdr.flow.more : selector;
        }
        actions = { go; NoAction; }
        implementation = second_ways;
    }
    apply {
        standard_metadata.egress_spec = CPU_PORT;
        if (!first.apply().hit) {
            second.apply();
        }
        if (hdr.flow.key == 9) {
            digest<learn_t>(1, { hdr.flow.flow, standard_metadata.ingress_port, hdr.flow.more });
        }
    }
}

control WaysEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { }
}

control WaysCompute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control WaysDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.flow);
    }
}

V1Switch(WaysParser(), WaysVerify(), WaysIngress(), WaysEgress(), WaysCompute(), WaysDeparser()) main;
