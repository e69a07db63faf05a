// SPDX-License-Identifier: Apache-2.0
//
// Beacons (protocol.md, 7.3): the controller sends a frame out of a port and sees where it arrives. So it finds links
// that are not as its topology says, and links that are down.

control Beacons(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(512, CounterType.packets_and_bytes) beacon_refused;

    action to_controller() {
        hdr.beacon.in_port = 7w0 ++ standard_metadata.ingress_port;
        standard_metadata.egress_spec = CPU_PORT;
    }

    // The ports with a link to another switch. A host cannot send a beacon to the controller.
    table linked_port {
        key = { standard_metadata.ingress_port : exact @name("port"); }
        actions = { to_controller; NoAction; }
        size = 512;
        const default_action = NoAction();
    }

    apply {
        if (standard_metadata.ingress_port == CPU_PORT) {
            standard_metadata.egress_spec = hdr.beacon.out_port[8:0];
        } else if (!linked_port.apply().hit) {
            beacon_refused.count((bit<32>) standard_metadata.ingress_port);
            meta.dropped = true;
            mark_to_drop(standard_metadata);
        }
    }
}
