// SPDX-License-Identifier: Apache-2.0
//
// Sizes and code points. contract/generate_constants.py makes the constants of hosts and tests from this file.

// 256-byte words in a DATA packet: 4 for an MTU of 1500 (at most 5), 32 for jumbo frames.
#ifndef WORDS
#define WORDS 4
#endif

// Slot versions in the switch. The controller leases them to jobs.
#ifndef SLOT_VERSIONS
#define SLOT_VERSIONS 16384
#endif

const bit<4> INAGG_VERSION = 4;

// UDP port of the aggregator: "IA". It is below Linux's ephemeral range, so no reply to a host program uses it.
const bit<16> INAGG_PORT = 0x4941;

// Packet kinds (protocol.md, 2.2). A result is the kind of its contributions with KIND_RESULT set. A query and its answer
// are these with KIND_QUERY set.
const bit<4> KIND_EXPONENT = 0x1;
const bit<4> KIND_DATA = 0x2;
const bit<4> KIND_QUERY = 0x4;
const bit<4> KIND_RESULT = 0x8;

// The flag of an answer to a query: the asker is to send its contribution again.
const bit<6> FLAG_AGAIN = 0x20;

// The flag of a sum: the packet of a contribution met a queue (protocol.md, 6.2).
const bit<6> FLAG_CONGESTED = 0x10;

// The last two bits of an IPv4 header's second byte (RFC 3168): 0 if the sender does not take part.
const bit<8> ECN_BITS = 0x03;
const bit<8> ECN_CAPABLE = 0x02;
const bit<8> ECN_CONGESTED = 0x03;

// An exponent's check field is the exponent plus EXPONENT_CHECK; MAX_EXPONENT is the largest exponent for which that
// fits (protocol.md, 3.2).
const bit<16> EXPONENT_CHECK = 341;
const bit<16> MAX_EXPONENT = 682;

const bit<16> INAGG_HEADER_BYTES = 20;
const bit<16> MEMBERS_BYTES = 8;
const bit<16> WORD_BYTES = 256;

// The most chunks in a row that go to one of several roots or servers (protocol.md, 5.5).
const bit<16> RUN_CHUNKS = 32;
// log2(RUN_CHUNKS). On a switch with several threads a run of slots belongs to one at a time.
const bit<8> RUN_BITS = 5;

const bit<16> ETHERNET_HEADER_BYTES = 14;
const bit<16> IPV4_HEADER_BYTES = 20;
const bit<16> UDP_HEADER_BYTES = 8;

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
// Tags of IEEE 802.1Q: customer's and service provider's.
const bit<16> ETHERTYPE_VLAN = 0x8100;
const bit<16> ETHERTYPE_SERVICE_VLAN = 0x88A8;
// Of beacons: IEEE 802's Local Experimental Ethertype 2.
const bit<16> ETHERTYPE_BEACON = 0x88B6;
const bit<8> IP_PROTOCOL_ICMP = 1;
const bit<8> IP_PROTOCOL_UDP = 17;

// The port of P4Runtime's packet-out and packet-in.
const bit<9> CPU_PORT = 510;

// Stands for all workers of a job as the receiver of a result.
const bit<8> ALL_RANKS = 255;

// The TTL of every packet from the aggregator.
const bit<8> OWN_TTL = 64;

const bit<16> ARP_HARDWARE_ETHERNET = 1;
const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY = 2;

const bit<8> ICMP_ECHO_REPLY = 0;
const bit<8> ICMP_ECHO_REQUEST = 8;

// The multicast group of all ports, installed by the controller. Jobs use groups above it.
const bit<16> FLOOD_GROUP = 1;
