// SPDX-License-Identifier: Apache-2.0
//
// Header layouts (protocol.md, 2) and per-packet metadata.

typedef bit<48> mac_address_t;
typedef bit<32> ipv4_address_t;
typedef bit<32> epoch_t;
typedef bit<32> chunk_t;
typedef bit<10> exponent_t;
typedef bit<16> announced_t;    // 6 flags and an exponent (3.2)
typedef bit<64> member_bitmap_t;
typedef bit<2048> word_t;

header ethernet_t {
    mac_address_t dst;
    mac_address_t src;
    bit<16> ether_type;
}

header arp_t {
    bit<16> hardware_type;
    bit<16> protocol_type;
    bit<8> hardware_length;
    bit<8> protocol_length;
    bit<16> operation;
    mac_address_t sender_mac;
    ipv4_address_t sender_ip;
    mac_address_t target_mac;
    ipv4_address_t target_ip;
}

// The controller's bytes follow it.
header beacon_t {
    bit<16> out_port;    // the port that it leaves the first switch by
    bit<16> in_port;     // the port that it came to the second switch by, written there
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<8> tos;
    bit<16> total_length;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> header_checksum;
    ipv4_address_t src;
    ipv4_address_t dst;
}

header udp_t {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// The part of the ICMP header that all messages share (RFC 792).
header icmp_t {
    bit<8> type;
    bit<8> code;
    bit<16> checksum;
}

header inagg_t {
    bit<4> version;
    bit<4> kind;
    bit<8> rank;
    bit<16> job;
    announced_t announced;
    // The same value in another code, so that a flipped bit in one of the two is detected (3.2).
    announced_t announced_check;
    epoch_t epoch;
    @steer(RUN_BITS)
    chunk_t chunk;
    bit<32> checksum;
}

// Behind the header of what goes from a switch to a server: a bit for each worker.
header members_t {
    member_bitmap_t bits;
}

// The switch does not know the lane width: it adds whole words, and guard bits keep carries inside lanes (3).
header word_header_t {
    word_t value;
}

struct headers_t {
    ethernet_t ethernet;
    arp_t arp;
    beacon_t beacon;
    ipv4_t ipv4;
    icmp_t icmp;
    udp_t udp;
    inagg_t inagg;
    members_t members;    // whose contributions it has, or who asks
    members_t waits_with; // of a query: whose contributions the asker's waits with in a slot
    word_header_t[WORDS] word;
}

struct metadata_t {
    bool aggregation;          // a packet of the aggregation protocol
    bit<8> words;              // words extracted
    bool answered;             // a request to the aggregator that this switch answered itself: ARP or ping
    bool bound;                // the source MAC address is bound to the port that the frame came in on
    bool dropped;
    bool congested;            // in egress: meets a long queue
    bool query;                // a query or an answer
    bool data;                 // of a DATA chunk
    bool from_parent;          // a result or an answer of a switch above
    bool to_parent;            // leaves for a switch above
    bool passes;               // a server's result on its way to a switch above
    bit<9> first_port;         // of member 0
    member_bitmap_t member;    // the sender's bit
    member_bitmap_t all;       // the bits of all members of the job at this switch
    bit<32> slot_base;         // first slot version of the job's lease
    bit<32> slot_mask;         // slot versions in the lease, less one; a power of two less one
    epoch_t epoch;             // the job's current epoch
    chunk_t first_chunk;       // at which the job begins
    bit<16> result_group;      // multicast group of the job's members
    bit<8> parents;            // switches above that share the job's chunks, a power of two; 0: this switch is a root
    bit<8> run_bits;           // 2^run_bits chunks in a row go to one of them
    bit<16> job;               // for egress: the job, and the rank of the receiver
    bit<8> rank;
}
