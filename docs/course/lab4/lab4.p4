// SPDX-License-Identifier: Apache-2.0
//
// Lab 4: two jobs. The control plane gives each job a range of slots and a multicast group, and each worker a port.

#include <core.p4>
#include <v1model.p4>

const bit<16> ETHERTYPE_LAB = 0x88B5;   // IEEE 802 keeps this type for local experiments
const bit<8> CONTRIBUTION = 0;
const bit<8> RESULT = 1;

const bit<32> VERSIONS = 16;            // of all jobs together

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header agg_t {
    bit<8> kind;
    bit<32> value;
    bit<32> chunk;
    bit<8> worker;                      // the sender's number in its job, from 0
    bit<16> job;
}

struct headers_t {
    ethernet_t ethernet;
    agg_t agg;
}

struct metadata_t {
    bool admitted;                      // the packet may take part in its job
    bit<32> base;                       // the first version of the job
    bit<32> mask;                       // the number of versions of the job, a power of two, less 1
    bit<8> all_bits;                    // a bit for each worker of the job
    bit<16> group;                      // the multicast group of the job's workers
}

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
    register<bit<32>>(VERSIONS) sum;    // the sum of the contributions so far
    register<bit<8>>(VERSIONS) seen;    // bit w: the contribution of worker w has been added
    register<bit<32>>(VERSIONS) chunk;  // the chunk that uses the version

    action drop() { mark_to_drop(sm); }

    action become_result(bit<32> total) {
        hdr.agg.kind = RESULT;
        hdr.agg.value = total;
    }

    action run(bit<32> base, bit<32> mask, bit<8> all_bits, bit<16> group) {
        //@ task 1
        //@| // TODO 1: keep the parameters in `meta`, for what follows.
        meta.base = base;
        meta.mask = mask;
        meta.all_bits = all_bits;
        meta.group = group;
        //@ end
    }
    table jobs {
        key = { hdr.agg.job : exact; }
        actions = { run; drop; }
        default_action = drop();
        size = 64;
    }

    action at_port(bit<9> port) {
        //@ task 3
        //@| // TODO 3: admit the packet only if it came in by the worker's port.
        //@| meta.admitted = true;
        meta.admitted = sm.ingress_port == port;
        //@ end
    }
    table workers {
        key = {
            hdr.agg.job : exact;
            hdr.agg.worker : exact;
        }
        actions = { at_port; drop; }
        default_action = drop();
        size = 512;
    }

    apply {
        meta.admitted = false;
        if (hdr.agg.isValid() && hdr.agg.kind == CONTRIBUTION) {
            if (jobs.apply().hit) {
                workers.apply();
            }
        }
        if (meta.admitted) {
            //@ task 2
            //@| // TODO 2: the versions of the job begin at meta.base.
            //@| bit<32> index = hdr.agg.chunk & meta.mask;
            bit<32> index = meta.base + (hdr.agg.chunk & meta.mask);
            //@ end
            bit<8> mine = 8w1 << hdr.agg.worker;
            bit<32> total;
            bit<8> bits;
            bit<32> held;
            sum.read(total, index);
            seen.read(bits, index);
            chunk.read(held, index);

            bool stale = (int<32>) (hdr.agg.chunk - held) < 0;
            if (hdr.agg.chunk != held) {
                total = 0;
                bits = 0;
            }
            if (stale) {
                drop();
            } else if ((bits & mine) != 0) {
                if (bits == meta.all_bits) {
                    become_result(total);
                    sm.egress_spec = sm.ingress_port;
                } else {
                    drop();
                }
            } else {
                total = total + hdr.agg.value;
                bits = bits | mine;
                sum.write(index, total);
                seen.write(index, bits);
                chunk.write(index, hdr.agg.chunk);
                if (bits == meta.all_bits) {
                    become_result(total);
                    sm.mcast_grp = meta.group;
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
