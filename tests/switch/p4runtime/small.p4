// SPDX-License-Identifier: Apache-2.0
//
// A program as small as P4Runtime's tests need: a table whose default action can be changed, one with every kind of
// match, one with const entries, and a counter, direct counter and register.
#include <core.p4>
#include <v1model.p4>

// A controller's values of these have 32 bits, and none.
@p4runtime_translation("test/port", bit<32>) type bit<9> port_id_t;
@p4runtime_translation("test/name", string) type bit<9> port_name_t;

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> ether_type;
}

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t {
}

parser SmallParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                   inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control SmallVerify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control SmallIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action send(bit<9> port) {
        standard_metadata.egress_spec = port;
    }

    action drop() {
        mark_to_drop(standard_metadata);
    }

    action send_to(port_id_t port) {
        standard_metadata.egress_spec = (bit<9>) port;
    }

    action send_named(port_name_t port) {
        standard_metadata.egress_spec = (bit<9>) port;
    }

    table forward {
        key = { hdr.ethernet.dst : exact @name("dst"); }
        actions = { send; send_to; send_named; drop; }
        size = 16;
        default_action = drop();
    }

    counter(16, CounterType.packets_and_bytes) seen;
    direct_counter(CounterType.packets_and_bytes) ordered_hits;
    register<bit<12>>(8) cells;

    action mark(bit<12> value) {
        ordered_hits.count();
        cells.write(0, value);
    }

    action skip() {
        ordered_hits.count();
    }

    table ordered {
        key = {
            hdr.ethernet.src : lpm @name("src");
            hdr.ethernet.ether_type : ternary @name("type");
            standard_metadata.ingress_port : range @name("port");
            hdr.ethernet.dst : optional @name("dst");
        }
        actions = { mark; @defaultonly skip; }
        size = 64;
        default_action = skip();
        counters = ordered_hits;
    }

    table fixed {
        key = { hdr.ethernet.ether_type : exact @name("type"); }
        actions = { NoAction; drop; }
        const entries = {
            0x0800 : NoAction();
            0x0806 : drop();
        }
        const default_action = NoAction();
    }

    apply {
        forward.apply();
        seen.count((bit<32>) standard_metadata.ingress_port);
        ordered.apply();
        fixed.apply();
    }
}

control SmallEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { }
}

control SmallCompute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control SmallDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
    }
}

V1Switch(SmallParser(), SmallVerify(), SmallIngress(), SmallEgress(), SmallCompute(), SmallDeparser()) main;
