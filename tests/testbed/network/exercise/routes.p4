// SPDX-License-Identifier: Apache-2.0
// Routes IPv4 by prefix; the other tables have the other kinds of keys.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header ipv4_t { bit<64> before; bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> src; bit<32> dst; }
struct headers_t { ethernet_t ethernet; ipv4_t ipv4; }
struct metadata_t { }

parser P(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t sm) {
    state start {
        packet.extract(h.ethernet);
        transition select(h.ethernet.type) { 0x800: ipv4; default: accept; }
    }
    state ipv4 { packet.extract(h.ipv4); transition accept; }
}

control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t sm) {
    register<bit<8>>(4) last_ttl;    // by port
    action drop() { mark_to_drop(sm); }
    action forward(bit<48> mac, bit<9> port) {
        h.ethernet.dst = mac;
        sm.egress_spec = port;
    }
    action flood(bit<16> group) { sm.mcast_grp = group; }
    table routes {
        key = { h.ipv4.dst : lpm; }
        actions = { forward; drop; }
        default_action = drop();
    }
    table guard {
        key = { h.ipv4.src : ternary; h.ipv4.protocol : range; h.ethernet.type : optional; }
        actions = { drop; flood; NoAction; }
        default_action = NoAction();
    }
    apply {
        if (!h.ipv4.isValid()) { drop(); return; }
        last_ttl.write((bit<32>) sm.ingress_port, h.ipv4.ttl);
        routes.apply();
        guard.apply();
    }
}

control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t sm) { apply { } }
control V(inout headers_t h, inout metadata_t m) { apply { } }
control U(inout headers_t h, inout metadata_t m) { apply { } }
control D(packet_out packet, in headers_t h) { apply { packet.emit(h); } }

V1Switch(P(), V(), I(), E(), U(), D()) main;
