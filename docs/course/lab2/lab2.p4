// SPDX-License-Identifier: Apache-2.0
//
// Lab 2: a pool of slots. Workers number their values (chunks), and several chunks are in flight.

#include <core.p4>
#include <v1model.p4>

const bit<16> ETHERTYPE_LAB = 0x88B5;   // IEEE 802 keeps this type for local experiments
const bit<8> CONTRIBUTION = 0;
const bit<8> RESULT = 1;
const bit<8> BUSY = 2;                  // the contribution was not added: send it again later

const bit<8> WORKERS = 3;
const bit<16> ALL_WORKERS = 1;          // the multicast group with the ports of all workers
const bit<32> SLOTS = 4;                // a power of two

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header agg_t {
    bit<8> kind;
    bit<32> value;
    bit<32> chunk;
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
    register<bit<32>>(SLOTS) sum;       // the sum of the contributions so far
    register<bit<8>>(SLOTS) count;      // the number of contributions so far; 0: the slot is free
    register<bit<32>>(SLOTS) chunk;     // the chunk that uses the slot

    action drop() { mark_to_drop(sm); }

    apply {
        if (hdr.agg.isValid() && hdr.agg.kind == CONTRIBUTION) {
            //@ task 1
            //@| // TODO 1: choose the slot of the chunk: chunk c uses slot c mod SLOTS.
            //@| bit<32> slot = 0;
            bit<32> slot = hdr.agg.chunk & (SLOTS - 1);
            //@ end
            bit<8> n;
            count.read(n, slot);

            bool taken = false;         // another chunk uses the slot
            //@ task 2
            //@| // TODO 2a: find out whether another chunk uses the slot. A chunk that finds a free slot takes it.
            bit<32> user;
            chunk.read(user, slot);
            taken = n != 0 && user != hdr.agg.chunk;
            if (n == 0) {
                chunk.write(slot, hdr.agg.chunk);
            }
            //@ end
            if (taken) {
                //@ task 2
                //@| // TODO 2b: send the packet back to the worker that it came from, with kind BUSY.
                //@| drop();
                hdr.agg.kind = BUSY;
                sm.egress_spec = sm.ingress_port;
                //@ end
            } else {
                bit<32> total;
                sum.read(total, slot);
                total = total + hdr.agg.value;
                n = n + 1;
                sum.write(slot, total);
                count.write(slot, n);
                if (n == WORKERS) {
                    hdr.agg.kind = RESULT;
                    hdr.agg.value = total;
                    sm.mcast_grp = ALL_WORKERS;
                    //@ task 3
                    //@| // TODO 3: free the slot, so that a later chunk can use it.
                    sum.write(slot, 0);
                    count.write(slot, 0);
                    //@ end
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
