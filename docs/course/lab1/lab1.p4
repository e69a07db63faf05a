// SPDX-License-Identifier: Apache-2.0
//
// Lab 1: a switch that sums. Each worker sends one value. The last contribution becomes the result.

#include <core.p4>
#include <v1model.p4>

const bit<16> ETHERTYPE_LAB = 0x88B5;   // IEEE 802 keeps this type for local experiments
const bit<8> CONTRIBUTION = 0;
const bit<8> RESULT = 1;

const bit<8> WORKERS = 3;
const bit<16> ALL_WORKERS = 1;          // the multicast group with the ports of all workers

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header agg_t {
    bit<8> kind;
    bit<32> value;
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
    register<bit<32>>(1) sum;           // the sum of the contributions so far
    register<bit<8>>(1) count;          // the number of contributions so far

    action drop() { mark_to_drop(sm); }

    apply {
        if (hdr.agg.isValid() && hdr.agg.kind == CONTRIBUTION) {
            bit<32> total = hdr.agg.value;
            bit<8> n = 0;
            //@ task 2
            //@| // TODO 2: add the sum so far to `total`, and store `total` in the register `sum`.
            bit<32> before;
            sum.read(before, 0);
            total = total + before;
            sum.write(0, total);
            //@ end
            //@ task 1
            //@| // TODO 1a: count this contribution. `n` must be the number of contributions with this one.
            count.read(n, 0);
            n = n + 1;
            count.write(0, n);
            //@ end
            if (n == WORKERS) {
                //@ task 1
                //@| // TODO 1b: make this packet the result of `total`, send it to all workers, and prepare the
                //@| // register `count` for the next round.
                hdr.agg.kind = RESULT;
                hdr.agg.value = total;
                sm.mcast_grp = ALL_WORKERS;
                count.write(0, 0);
                //@ end
                //@ task 3
                //@| // TODO 3: prepare the register `sum` for the next round.
                sum.write(0, 0);
                //@ end
            } else {
                drop();
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
