// SPDX-License-Identifier: Apache-2.0
//
// Meters, direct meters, action profiles and selectors, digests, idle timeouts.
#include <core.p4>
#include <v1model.p4>

header ask_t { bit<8> what; bit<16> flow; bit<8> index; }
header told_t { bit<8> colour; bit<8> direct; bit<16> member; bit<8> run; }
struct headers_t { ask_t ask; told_t told; }
struct metadata_t { bit<2> colour; bit<2> direct; bit<16> member; }
struct learned_t { bit<16> flow; bit<9> port; bool odd; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.ask); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    meter(4, MeterType.packets) rates;
    direct_meter<bit<2>>(MeterType.bytes) flow_rate;
    direct_counter(CounterType.packets) flow_count;
    action_profile(16) singles;
    action_profile(4) spare;
    @max_group_size(8)
    action_selector(HashAlgorithm.crc16, 32, 14) spread;
    action member(bit<16> number) { meta.member = number; }
    action other(bit<16> number) { meta.member = number + 0x1000; }
    action measure() { flow_rate.read(meta.direct); }
    direct_meter<bit<2>>(MeterType.packets) unused;
    action skip() { }
    table single {
        key = { hdr.ask.what: exact; }
        actions = { member; other; NoAction; }
        implementation = singles;
        size = 64;
    }
    table group {
        key = { hdr.ask.what: ternary; hdr.ask.flow: selector; hdr.ask.index: selector; }
        actions = { member; other; }
        implementation = spread;
    }
    // BMv2 knows nothing of entries in a table with an action profile, nor of selector keys in one without.
    table listed {
        key = { hdr.ask.what: exact; }
        actions = { member; NoAction; }
        implementation = spare;
        const entries = { 0x40: member(7); }
    }
    table lone_selector {
        key = { hdr.ask.what: exact; hdr.ask.flow: selector; }
        actions = { member; NoAction; }
    }
    table measured {
        key = { hdr.ask.flow: exact; }
        actions = { measure; skip; }
        default_action = skip();
        meters = flow_rate;
        counters = flow_count;
        support_timeout = true;
    }
    apply {
        sm.egress_spec = 2;
        hdr.told.setValid();
        rates.execute_meter((bit<32>) hdr.ask.index, meta.colour);
        measured.apply();
        hdr.told.run = 0;
        if (hdr.ask.what < 8) {
            switch (single.apply().action_run) {
                member: { hdr.told.run = 1; }
                other: { hdr.told.run = 2; }
                default: { hdr.told.run = 3; }
            }
        } else {
            if (group.apply().hit) { hdr.told.run = 4; }
        }
        if (hdr.ask.what == 9) { digest<learned_t>(1, { hdr.ask.flow, sm.ingress_port, hdr.ask.flow[0:0] == 1 }); }
        if (hdr.ask.what == 0x40) { listed.apply(); }
        if (hdr.ask.what == 0x41) { lone_selector.apply(); }
        if (hdr.ask.what == 0x42) { digest(1, { hdr.ask.flow, hdr.ask.index }); }
        if (hdr.ask.what == 0x43) { digest<bit<16>>(1, hdr.ask.flow); }
        hdr.told.colour = (bit<8>) meta.colour;
        hdr.told.direct = (bit<8>) meta.direct;
        hdr.told.member = meta.member;
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.ask); packet.emit(hdr.told); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
