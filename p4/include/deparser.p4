// SPDX-License-Identifier: Apache-2.0
//
// Emits the valid headers; the bytes that the parser did not read follow as payload.
control InaggDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.beacon);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.icmp);
        packet.emit(hdr.udp);
        packet.emit(hdr.inagg);
        packet.emit(hdr.members);
        packet.emit(hdr.waits_with);
        packet.emit(hdr.word);
    }
}
