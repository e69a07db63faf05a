// SPDX-License-Identifier: Apache-2.0
//
// The parser, and the IPv4 header checksum of incoming and outgoing packets.

// In udp.length, of a packet without anything behind its header.
const bit<16> BARE_BYTES = UDP_HEADER_BYTES + INAGG_HEADER_BYTES;

parser InaggParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                   inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_ARP: parse_arp;
            ETHERTYPE_BEACON: parse_beacon;
            default: accept;
        }
    }

    state parse_arp {
        packet.extract(hdr.arp);
        transition accept;
    }

    state parse_beacon {
        packet.extract(hdr.beacon);
        transition accept;
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        // Packets with options and fragments are ordinary traffic: forwarded by MAC address, not parsed further.
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.flags[0:0], hdr.ipv4.fragment_offset,
                          hdr.ipv4.protocol) {
            (4, 5, 0, 0, IP_PROTOCOL_UDP): parse_udp;
            (4, 5, 0, 0, IP_PROTOCOL_ICMP): parse_icmp;
            default: accept;
        }
    }

    state parse_icmp {
        packet.extract(hdr.icmp);
        transition accept;
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            INAGG_PORT: parse_inagg;
            default: accept;
        }
    }

    state parse_inagg {
        // Set before the extraction, so that a packet too short for its header is counted as malformed.
        meta.aggregation = true;
        packet.extract(hdr.inagg);
        // The length tells what a switch of a job on shared slots has put behind the header.
        transition select(hdr.udp.length) {
            BARE_BYTES + MEMBERS_BYTES: parse_members;
            BARE_BYTES + MEMBERS_BYTES + WORDS * WORD_BYTES: parse_members;
            BARE_BYTES + 2 * MEMBERS_BYTES: parse_waits_with;
            default: parse_kind;
        }
    }

    state parse_members {
        packet.extract(hdr.members);
        transition parse_kind;
    }

    state parse_waits_with {
        packet.extract(hdr.members);
        packet.extract(hdr.waits_with);
        transition parse_kind;
    }

    state parse_kind {
        transition select(hdr.inagg.kind) {
            KIND_DATA: parse_words;
            KIND_DATA | KIND_RESULT: parse_words;
            default: accept;
        }
    }

    state parse_words {
        // A counter, because BMv2 refuses a select on lastIndex, although p4c compiles it.
        packet.extract(hdr.word.next);
        meta.words = meta.words + 1;
        transition select(meta.words) {
            WORDS: accept;
            default: parse_words;
        }
    }
}

control InaggVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
                        { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length,
                          hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl,
                          hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
                        hdr.ipv4.header_checksum, HashAlgorithm.csum16);
    }
}

// The switch writes the IPv4 header of packets of the protocol, of answers to pings, and of what it marks. Others leave
// unchanged.
control InaggComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.aggregation || meta.congested || (meta.answered && hdr.ipv4.isValid()),
                        { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length,
                          hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl,
                          hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
                        hdr.ipv4.header_checksum, HashAlgorithm.csum16);
    }
}
