// SPDX-License-Identifier: Apache-2.0
//
// Decides who may use which address (protocol.md, 5.4). The controller binds a host's MAC and IPv4 addresses to its
// port, and the aggregator's to no port. Runs for ordinary traffic only: admission checks port and address of
// contributions.

control SourceGuard(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(512, CounterType.packets_and_bytes) aggregator_forged;
    counter(512, CounterType.packets_and_bytes) source_refused;
    counter(512, CounterType.packets_and_bytes) vlan_tagged;

    bool forged;           // the source is the aggregator's
    bool refused;          // the source is bound to another port, or this port to another source
    bool ip_bound;
    ipv4_address_t source;

    action mac_of_aggregator() {
        forged = true;
    }

    action mac_of_port(bit<9> port) {
        meta.bound = port == standard_metadata.ingress_port;
        refused = port != standard_metadata.ingress_port;
    }

    table source_mac {
        key = { hdr.ethernet.src : exact @name("mac"); }
        actions = { mac_of_aggregator; mac_of_port; NoAction; }
        size = 1024;
        const default_action = NoAction();
    }

    action ip_of_aggregator() {
        forged = true;
    }

    action ip_of_host(bit<9> port, mac_address_t mac) {
        ip_bound = true;
        refused = refused || port != standard_metadata.ingress_port || mac != hdr.ethernet.src;
    }

    table source_ip {
        key = { source : exact @name("ip"); }
        actions = { ip_of_aggregator; ip_of_host; NoAction; }
        size = 1024;
        const default_action = NoAction();
    }

    // Only bound hosts may use a port with a binding.
    action refuse_stranger() {
        refused = true;
    }

    table bound_port {
        key = { standard_metadata.ingress_port : exact @name("port"); }
        actions = { refuse_stranger; NoAction; }
        size = 512;
        const default_action = NoAction();
    }

    action drop_frame() {
        meta.dropped = true;
        mark_to_drop(standard_metadata);
    }

    apply {
        forged = false;
        refused = false;
        ip_bound = false;
        source = 0;
        bit<32> port = (bit<32>) standard_metadata.ingress_port;
        if (hdr.ethernet.isValid()) {
            source_mac.apply();
            if (!meta.bound && !refused) {
                bound_port.apply();
            }
            if (hdr.ipv4.isValid()) {
                source = hdr.ipv4.src;
            } else if (hdr.arp.isValid()) {
                source = hdr.arp.sender_ip;
                refused = refused || hdr.arp.sender_mac != hdr.ethernet.src;
            }
            // A host that does not know its address yet uses 0.0.0.0 (RFC 2131, RFC 5227), which claims nothing.
            if (source != 0) {
                source_ip.apply();
                refused = refused || (meta.bound && !ip_bound);
            }
            if (hdr.ethernet.ether_type == ETHERTYPE_VLAN || hdr.ethernet.ether_type == ETHERTYPE_SERVICE_VLAN) {
                // The network has no VLANs, and a host accepts the tag of VLAN 0: behind it, the checks above would not
                // see the addresses.
                vlan_tagged.count(port);
                drop_frame();
            } else if (forged) {
                aggregator_forged.count(port);
                drop_frame();
            } else if (refused) {
                source_refused.count(port);
                drop_frame();
            }
        }
    }
}
