// SPDX-License-Identifier: Apache-2.0
//
// Answers ARP requests for the aggregator's address, so that a worker reaches it with a plain UDP socket.

control ArpResponder(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action answer(mac_address_t mac) {
        ipv4_address_t asked = hdr.arp.target_ip;
        hdr.ethernet.dst = hdr.arp.sender_mac;
        hdr.ethernet.src = mac;
        hdr.arp.operation = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_mac = mac;
        hdr.arp.sender_ip = asked;
        standard_metadata.egress_spec = standard_metadata.ingress_port;
        meta.answered = true;
    }

    table arp_responder {
        key = { hdr.arp.target_ip : exact @name("ip"); }
        actions = { answer; NoAction; }
        size = 16;
        const default_action = NoAction();
    }

    apply {
        if (hdr.arp.isValid() && hdr.arp.operation == ARP_REQUEST
            && hdr.arp.hardware_type == ARP_HARDWARE_ETHERNET && hdr.arp.protocol_type == ETHERTYPE_IPV4) {
            arp_responder.apply();
        }
    }
}
