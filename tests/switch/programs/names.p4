// SPDX-License-Identifier: Apache-2.0
//
// Names that are words of C++, or of the code that the model makes, mean what they mean here. One name in the program
// and in a control.
#include <core.p4>
#include <v1model.p4>

header packet_t { bit<8> valid; bit<8> bytes; bit<8> new; bit<8> p; bit<16> class; bit<32> delete; bit<32> random; }
header value_t { bit<8> _0; bit<8> __0; bit<8> length; bit<8> length_x; bit<8> EOF; bit<8> value_t; bit<16> sched_priority; }
header Varbit { bit<8> std; varbit<16> load_bits; }
struct std { value_t value; Varbit value_t; }
struct Packet { packet_t packet; packet_t copy; std Stack; }
struct isw { bit<8> p4; bit<8> NULL; }
struct Program { bit<8> groups; bit<16> metadata; isw isw; }

parser p(packet_in packet, out Packet headers, inout Program metadata, inout standard_metadata_t standard) {
    state steps { packet.extract(headers.copy); transition accept; }
    state start {
        packet.extract(headers.packet);
        transition select(headers.packet.valid) { 1: steps; 2: LINE_MAX; default: accept; }
    }
    state LINE_MAX {
        packet.extract(headers.Stack.value);
        packet.extract(headers.Stack.value_t, 8);
        transition accept;
    }
}
control parse(inout Packet headers, inout Program metadata) { apply { } }
control tables(inout packet_t found, in bit<8> more) {
    action count(bit<8> entry) { found.bytes = entry + more; }
    table lookup {
        key = { found.valid: exact @name("value"); }
        actions = { count; NoAction; }
        default_action = NoAction;
        const entries = { 7: count(3); }
    }
    apply { lookup.apply(); }
}
action bump(inout bit<16> x) { x = x + 0x100; }
control ingress(inout Packet headers, inout Program metadata, inout standard_metadata_t standard) {
    register<bit<32>>(4) random;
    register<bit<32>>(4) groups;
    counter(4, CounterType.packets) packet;
    tables() process;
    action send() { standard.egress_spec = 2; }
    action EOF(inout value_t value, in isw NULL) {
        value._0 = value.__0 + NULL.p4;
        value.length = value.length_x + NULL.NULL;
        value.EOF = value.value_t;
        value.sched_priority[7:0] = 9;
    }
    action bump(inout bit<16> x) { x = x + 1; }
    table bumped {
        actions = { .bump(headers.packet.class); }
        default_action = .bump(headers.packet.class);
    }
    table copy {
        key = { headers.packet.p: exact @name("result"); }
        actions = { send; NoAction; }
        default_action = NoAction();
        const entries = { 5: send; }
    }
    apply {
        bit<32> program = headers.packet.delete;
        bit<32> namespace = program + 1;
        bit<8> exited = headers.packet.new;
        standard.egress_spec = 1;
        packet.count(2);
        random.write(1, namespace);
        random.read(headers.packet.random, 1);
        groups.read(program, 1);
        headers.packet.delete = program;
        bump(headers.packet.class);
        if (headers.packet.p == 9) { .bump(headers.packet.class); bumped.apply(); }
        process.apply(headers.packet, exited);
        copy.apply();
        metadata.isw = { 3, headers.packet.valid };
        EOF(headers.Stack.value, metadata.isw);
    }
}
control egress(inout Packet headers, inout Program metadata, inout standard_metadata_t standard) { apply { } }
control update(inout Packet headers, inout Program metadata) { apply { } }
control deparse(packet_out packet, in Packet headers) { apply { packet.emit(headers); } }
V1Switch(p(), parse(), ingress(), egress(), update(), deparse()) main;
