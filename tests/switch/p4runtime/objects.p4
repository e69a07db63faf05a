// SPDX-License-Identifier: Apache-2.0
//
// One of each object that P4Runtime knows beside tables, counters and registers: a value set, meters, a digest, an
// action profile, a selector, a clone session, and a table whose entries can be idle.
#include <core.p4>
#include <v1model.p4>

const bit<32> MIRROR = 5;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

header tag_t {
    bit<16> number;
}

struct headers_t {
    ethernet_t ethernet;
    tag_t tag;
}

struct learn_t {
    bit<48> station;
    bit<9> port;
}

struct metadata_t {
    bit<2> color;
}

parser ObjectParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    value_set<bit<16>>(2) tag_types;

    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            tag_types: parse_tag;
            default: accept;
        }
    }
    state parse_tag {
        packet.extract(hdr.tag);
        transition accept;
    }
}

control ObjectVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control ObjectIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    meter(4, MeterType.packets) port_rate;
    direct_meter<bit<2>>(MeterType.bytes) flow_rate;
    action_selector(HashAlgorithm.crc16, 16, 8) ways;
    action_profile(4) rewrites;

    action send(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    action drop() {
        mark_to_drop(standard_metadata);
    }

    action admit() {
        flow_rate.read(meta.color);
    }

    action rewrite(bit<48> dst) {
        hdr.ethernet.dst = dst;
    }

    table flows {
        key = { hdr.ethernet.src : exact @name("src"); }
        actions = { admit; NoAction; }
        size = 16;
        default_action = NoAction();
        meters = flow_rate;
        support_timeout = true;
    }

    table route {
        key = {
            hdr.ethernet.dst : exact @name("dst");
            hdr.ethernet.src : selector;
        }
        actions = { send; drop; }
        size = 16;
        implementation = ways;
    }

    table translate {
        key = { hdr.ethernet.dst : exact @name("dst"); }
        actions = { rewrite; NoAction; }
        size = 16;
        implementation = rewrites;
    }

    apply {
        digest<learn_t>(1, { hdr.ethernet.src, standard_metadata.ingress_port });
        route.apply();
        translate.apply();
        if (flows.apply().hit && meta.color == 2) {
            drop();
        }
        bit<2> color = 0;
        port_rate.execute_meter((bit<32>) standard_metadata.ingress_port, color);
        if (color == 2) {
            drop();
        }
        if (hdr.tag.isValid()) {
            clone(CloneType.I2E, MIRROR);
        }
    }
}

control ObjectEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { }
}

control ObjectCompute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control ObjectDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.tag);
    }
}

V1Switch(ObjectParser(), ObjectVerify(), ObjectIngress(), ObjectEgress(), ObjectCompute(), ObjectDeparser()) main;
