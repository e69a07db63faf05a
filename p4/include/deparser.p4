// SPDX-License-Identifier: Apache-2.0
//
// Headers that are not valid are not emitted; what the parser did not read follows as payload.
control InaggDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.icmp);
        packet.emit(hdr.udp);
        packet.emit(hdr.inagg);
        packet.emit(hdr.word);
    }
}
