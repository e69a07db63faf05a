// SPDX-License-Identifier: Apache-2.0
// Uses every declaration of core.p4 and v1model.p4 that a program can use, for tests.fuzz.library.
#include <core.p4>
#include <v1model.p4>

header h_t { bit<8> a; bit<16> b; bit<32> c; }
header v_t { varbit<64> v; }
struct headers_t { h_t h; v_t v; h_t[2] s; }
struct meta_t { @field_list(1) bit<8> x; bit<16> y; bit<2> colour; }
struct digest_t { bit<8> a; }

parser P(packet_in p, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    value_set<bit<8>>(4) known;
    state start {
        bit<8> first = p.lookahead<bit<8>>();
        p.extract(hdr.h);
        verify(hdr.h.a == first, error.NoMatch);
        transition select(hdr.h.a) { known: more; 1 &&& 3: accept; default: accept; }
    }
    state more { p.extract(hdr.v, 16); p.advance(8); p.extract(hdr.s.next); transition accept; }
}

control V(inout headers_t hdr, inout meta_t meta) {
    apply {
        verify_checksum(true, { hdr.h.a }, hdr.h.b, HashAlgorithm.csum16);
        verify_checksum_with_payload(true, { hdr.h.a }, hdr.h.b, HashAlgorithm.csum16);
    }
}

control I(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    counter(4, CounterType.packets) plain;
    direct_counter(CounterType.bytes) direct;
    meter(4, MeterType.bytes) rates;
    direct_meter<bit<2>>(MeterType.packets) rate;
    register<bit<8>>(4) cells;
    action_profile(4) profile;
    action_selector(HashAlgorithm.crc16, 4, 10) selector;
    action drop() { mark_to_drop(sm); }
    action forward(bit<9> port) { sm.egress_spec = port; direct.count(); rate.read(meta.colour); }
    table t {
        key = { hdr.h.a: exact; hdr.h.b: ternary; }
        actions = { forward; drop; NoAction; }
        default_action = NoAction();
        counters = direct;
        meters = rate;
    }
    table u { key = { hdr.h.a: lpm; hdr.h.b: range; } actions = { drop; NoAction; } }
    table w { key = { hdr.h.a: optional; } actions = { drop; } }
    table v { key = { hdr.h.a: exact; } actions = { drop; } implementation = profile; }
    table x { key = { hdr.h.a: exact; hdr.h.b: selector; } actions = { drop; } implementation = selector; }
    apply {
        t.apply(); u.apply(); v.apply(); w.apply(); x.apply();
        plain.count(0);
        rates.execute_meter(1, meta.colour);
        cells.read(meta.x, 0);
        cells.write(1, meta.x);
        random(meta.x, 0, 7);
        hash(meta.y, HashAlgorithm.crc32, 16w0, { hdr.h.a, hdr.h.b }, 16w8);
        digest<digest_t>(1, { hdr.h.a });
        clone(CloneType.I2E, 1);
        clone_preserving_field_list(CloneType.I2E, 1, 1);
        resubmit_preserving_field_list(1);
        truncate(64);
        static_assert(true);
        static_assert(true, "always");
        assert(meta.x < 8);
        assume(meta.x < 8);
        log_msg("once");
        log_msg("x = {}", { meta.x });
        sm.mcast_grp = (bit<16>) sm.ingress_port;
    }
}

control E(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    apply {
        recirculate_preserving_field_list(1);
        hdr.h.c = sm.instance_type + sm.packet_length + sm.enq_timestamp + (bit<32>) sm.enq_qdepth + sm.deq_timedelta;
        hdr.h.c = hdr.h.c + (bit<32>) sm.deq_qdepth + (bit<32>) sm.ingress_global_timestamp + (bit<32>) sm.priority;
        hdr.h.b = sm.egress_rid + (bit<16>) sm.egress_port + (bit<16>) sm.checksum_error;
        if (sm.parser_error != error.NoError) { mark_to_drop(sm); }
    }
}

control C(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(true, { hdr.h.a }, hdr.h.b, HashAlgorithm.csum16);
        update_checksum_with_payload(true, { hdr.h.a }, hdr.h.b, HashAlgorithm.csum16);
    }
}

control D(packet_out p, in headers_t hdr) { apply { p.emit(hdr); } }

V1Switch(P(), V(), I(), E(), C(), D()) main;
