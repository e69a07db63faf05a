// SPDX-License-Identifier: Apache-2.0
//
// Every match kind, const entries, default actions, hit, miss, action_run, priorities.
#include <core.p4>
#include <v1model.p4>

header in_t { bit<8> which; bit<32> k; bit<16> p; bit<8> q; }
header out_t { bit<8> hit; bit<8> run; bit<16> value; }
struct headers_t { in_t i; in_t gone; out_t o; in_t[2] s; }
struct metadata_t { bit<1> one; }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start { packet.extract(hdr.i); transition accept; }
}
control V(inout headers_t hdr, inout metadata_t meta) { apply { } }
control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    direct_counter(CounterType.packets_and_bytes) hits;
    action set(bit<16> value) { hdr.o.value = value; }
    action add(bit<16> value, bit<8> more) { hdr.o.value = hdr.o.value + value + (bit<16>) more; }
    action missed() { hdr.o.value = 0xFFFF; }
    action only_here(inout bit<16> target, bit<16> value) { target = target ^ value; }

    table exactly { key = { hdr.i.k : exact; hdr.i.p : exact; } actions = { set; add; missed; }
                    default_action = missed(); size = 16; counters = hits; }
    table prefix { key = { hdr.i.k : lpm; } actions = { set; missed; } const default_action = missed(); }
    table both { key = { hdr.i.q : exact; hdr.i.k : lpm; } actions = { set; NoAction; } }
    table masks { key = { hdr.i.k : ternary; hdr.i.p : ternary; } actions = { set; add; NoAction; } }
    table ranges { key = { hdr.i.p : range; hdr.i.q : exact; } actions = { set; missed; }
                   default_action = set(0x1234); }
    table maybe { key = { hdr.i.q : optional; hdr.i.p : optional; } actions = { set; NoAction; } }
    table fixed {
        key = { hdr.i.k[7:0] : ternary; hdr.i.p : exact @name("p"); }
        actions = { set; add; missed; }
        const entries = {
            (0x10 &&& 0xF0, 1) : set(1);
            (0x12, 1) : set(2);
            (0x40 &&& 0xF0, 1) : set(3);
            (0x41, 1) : set(4) @priority(3);
            (0x42, 1) : set(5) @priority(1);
            (0x43, 1) : set(6) @priority(2);
            (_, 2) : add(3, 4);
            (0x01 &&& 0x01, 3) : missed();
        }
    }
    table keyless { actions = { set; } default_action = set(77); }
    table of_invalid {
        key = { hdr.gone.k : ternary; hdr.gone.q & 0x0F : exact @name("low"); hdr.gone.p[7:0] : exact @name("part"); }
        actions = { set; NoAction; }
    }
    table behind {
        key = { hdr.i.k & 0xFF00 : exact @name("k"); 0x0F & hdr.i.q : ternary @name("q");
                hdr.i.p & 0x0FFF : range @name("p"); }
        actions = { set; missed; }
        default_action = missed();
    }
    table behind_fixed { key = { hdr.i.k & 0xFF00 : exact @name("k"); } actions = { set; NoAction; }
                         const entries = { 0x4455 : set(0x16); } }
    table of_stack { key = { hdr.s[0].q : exact; hdr.s[1].q & 0x0F : exact @name("low"); } actions = { set; missed; }
                     default_action = missed(); }
    table bound { key = { hdr.i.q : exact; } actions = { only_here(hdr.o.value); NoAction; } }

    apply {
        sm.egress_spec = 1;
        hdr.o.setValid();
        if (hdr.i.which == 0) {
            switch (exactly.apply().action_run) {
                set: { hdr.o.run = 1; }
                add: { hdr.o.run = 2; }
                default: { hdr.o.run = 9; }
            }
        } else if (hdr.i.which == 1) {
            if (prefix.apply().hit) { hdr.o.hit = 1; }
        } else if (hdr.i.which == 2) {
            if (both.apply().miss) { hdr.o.hit = 2; } else { hdr.o.hit = 1; }
        } else if (hdr.i.which == 3) {
            if (!masks.apply().hit) { hdr.o.hit = 2; }
        } else if (hdr.i.which == 4) {
            ranges.apply();
        } else if (hdr.i.which == 5) {
            if (maybe.apply().hit) { hdr.o.hit = 1; }
        } else if (hdr.i.which == 6) {
            if (fixed.apply().hit) { hdr.o.hit = 1; }
        } else if (hdr.i.which == 7) {
            if (keyless.apply().hit) { hdr.o.hit = 1; }
        } else if (hdr.i.which == 9) {
            hdr.gone = hdr.i;
            if (hdr.i.k != 0) { hdr.gone.setInvalid(); }
            of_invalid.apply();
        } else if (hdr.i.which == 10) {
            if (behind.apply().miss) { behind_fixed.apply(); }
        } else if (hdr.i.which == 11) {
            hdr.s[0] = hdr.i;
            hdr.s[1] = hdr.i;
            if (hdr.i.k != 0) { hdr.s[0].setInvalid(); hdr.s[1].setInvalid(); }
            of_stack.apply();
        } else {
            bound.apply();
        }
    }
}
control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control C(inout headers_t hdr, inout metadata_t meta) { apply { } }
control D(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.o); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
