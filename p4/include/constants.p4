// Sizes and code points. Hosts and tests read the ones they need from this file; nothing is typed twice.

// 256-byte words in a DATA packet: 4 for an MTU of 1500 (5 is the last drop), 32 for jumbo frames.
#ifndef WORDS
#define WORDS 4
#endif

// Slot versions in the switch, shared out between jobs by the controller.
#ifndef POOL_SLOTS
#define POOL_SLOTS 16384
#endif

const bit<8> INAGG_VERSION = 1;

// UDP port of the aggregator: "IA". Below Linux's ephemeral range, so no reply to a host program lands on it.
const bit<16> INAGG_PORT = 0x4941;

// Packet kinds (protocol.md, 2.2). A result is the kind of its contributions with KIND_RESULT set.
const bit<8> KIND_EXPONENT = 0x01;
const bit<8> KIND_DATA = 0x02;
const bit<8> KIND_RESULT = 0x80;

const bit<16> INAGG_HEADER_BYTES = 20;
const bit<16> WORD_BYTES = 256;
const bit<16> IPV4_HEADER_BYTES = 20;
const bit<16> UDP_HEADER_BYTES = 8;

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<8> IP_PROTOCOL_UDP = 17;
const bit<8> RESULT_TTL = 64;

const bit<16> ARP_HARDWARE_ETHERNET = 1;
const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY = 2;

// The multicast group of all ports, installed by the controller. Jobs use groups above it.
const bit<16> FLOOD_GROUP = 1;
