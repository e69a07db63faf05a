// SPDX-License-Identifier: Apache-2.0
//
// Lab 3: loss and duplicates. Workers send a contribution again if its result does not arrive.

#include <core.p4>
#include <v1model.p4>

const bit<16> ETHERTYPE_LAB = 0x88B5;   // IEEE 802 keeps this type for local experiments
const bit<8> CONTRIBUTION = 0;
const bit<8> RESULT = 1;

const bit<8> WORKERS = 3;
const bit<8> ALL_BITS = (8w1 << WORKERS) - 1;
const bit<16> ALL_WORKERS = 1;          // the multicast group with the ports of all workers
const bit<32> SLOTS = 4;                // a power of two
const bit<32> VERSIONS = 2 * SLOTS;     // each slot has two versions

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header agg_t {
    bit<8> kind;
    bit<32> value;
    bit<32> chunk;
    bit<8> worker;                      // the sender's number, from 0
}

struct headers_t {
    ethernet_t ethernet;
    agg_t agg;
}

struct metadata_t { }

parser LabParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            ETHERTYPE_LAB: parse_agg;
            default: accept;
        }
    }
    state parse_agg {
        packet.extract(hdr.agg);
        transition accept;
    }
}

control LabIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) {
    // Nothing is cleared after a result: the next chunk overwrites it. So the result can be sent again until then.
    register<bit<32>>(VERSIONS) sum;    // the sum of the contributions so far
    register<bit<8>>(VERSIONS) seen;    // bit w: the contribution of worker w has been added
    register<bit<32>>(VERSIONS) chunk;  // the chunk that uses the version

    action drop() { mark_to_drop(sm); }

    action become_result(bit<32> total) {
        hdr.agg.kind = RESULT;
        hdr.agg.value = total;
    }

    apply {
        if (hdr.agg.isValid() && hdr.agg.kind == CONTRIBUTION && hdr.agg.worker < WORKERS) {
            //@ task 3
            //@| // TODO 3: chunk c uses slot c mod SLOTS, in version (c / SLOTS) mod 2. Choose the index so that both
            //@| // versions of a slot are in the registers at the same time.
            //@| bit<32> index = hdr.agg.chunk & (SLOTS - 1);
            bit<32> index = hdr.agg.chunk & (VERSIONS - 1);
            //@ end
            bit<8> mine = 8w1 << hdr.agg.worker;
            bit<32> total;
            bit<8> bits;
            bit<32> held;
            sum.read(total, index);
            seen.read(bits, index);
            chunk.read(held, index);

            bool stale = false;         // the version has a later chunk than this packet's
            //@ task 4
            //@| // TODO 4: find out whether the packet is stale. Chunk numbers wrap from 2^32 - 1 to 0, so use the sign
            //@| // of a difference: cast hdr.agg.chunk - held to int<32>.
            stale = (int<32>) (hdr.agg.chunk - held) < 0;
            //@ end
            if (hdr.agg.chunk != held) {
                // A later chunk begins here.
                total = 0;
                bits = 0;
            }

            bool duplicate = false;     // this worker's contribution has been added before
            //@ task 1
            //@| // TODO 1: find out whether the packet is a duplicate.
            duplicate = (bits & mine) != 0;
            //@ end
            if (stale) {
                drop();
            } else if (duplicate) {
                //@ task 2
                //@| // TODO 2: if the sum is complete, this worker has missed the result: send the result again, to this
                //@| // worker only. If the sum is not complete, drop the packet.
                //@| drop();
                if (bits == ALL_BITS) {
                    become_result(total);
                    sm.egress_spec = sm.ingress_port;
                } else {
                    drop();
                }
                //@ end
            } else {
                total = total + hdr.agg.value;
                bits = bits | mine;
                sum.write(index, total);
                seen.write(index, bits);
                chunk.write(index, hdr.agg.chunk);
                if (bits == ALL_BITS) {
                    become_result(total);
                    sm.mcast_grp = ALL_WORKERS;
                } else {
                    drop();
                }
            }
        } else {
            drop();
        }
    }
}

control LabEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t sm) { apply { } }
control LabVerifyChecksum(inout headers_t hdr, inout metadata_t meta) { apply { } }
control LabComputeChecksum(inout headers_t hdr, inout metadata_t meta) { apply { } }

control LabDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.agg);
    }
}

V1Switch(LabParser(), LabVerifyChecksum(), LabIngress(), LabEgress(), LabComputeChecksum(), LabDeparser()) main;
