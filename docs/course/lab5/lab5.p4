// SPDX-License-Identifier: Apache-2.0
//
// Lab 5: two levels. A leaf switch sums its rack, and contributes the partial sum to the root. All switches run this
// program. The table `parents` says which switch is a leaf, job by job.

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
    bit<8> worker;                      // the sender's number at this switch, from 0
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
    bit<8> all_bits;                    // a bit for each worker of the job at this switch
    bit<16> group;                      // the multicast group of these workers
    bool leaf;                          // there is a switch above
    bit<9> up;                          // the port to the switch above
    bit<8> number;                      // this switch's worker number there
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
    register<bit<32>>(VERSIONS) sum;    // the sum of the contributions so far; after the result: the result
    register<bit<8>>(VERSIONS) seen;    // bit w: the contribution of worker w has been added
    register<bit<32>>(VERSIONS) chunk;  // the chunk that uses the version
    register<bit<1>>(VERSIONS) final;   // 1: `sum` is the result of the job, not a partial sum

    action drop() { mark_to_drop(sm); }

    action become_result(bit<32> total) {
        hdr.agg.kind = RESULT;
        hdr.agg.value = total;
    }

    // The packet becomes this switch's contribution to the switch above.
    action send_up(bit<32> total) {
        //@ task 1
        //@| // TODO 1: fill in value and worker, and send the packet to the switch above.
        //@| mark_to_drop(sm);
        hdr.agg.value = total;
        hdr.agg.worker = meta.number;
        sm.egress_spec = meta.up;
        //@ end
    }

    action run(bit<32> base, bit<32> mask, bit<8> all_bits, bit<16> group) {
        meta.base = base;
        meta.mask = mask;
        meta.all_bits = all_bits;
        meta.group = group;
    }
    table jobs {
        key = { hdr.agg.job : exact; }
        actions = { run; drop; }
        default_action = drop();
        size = 64;
    }

    action at_port(bit<9> port) {
        meta.admitted = sm.ingress_port == port;
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

    // Without an entry this switch is the root of the job.
    action parent(bit<9> port, bit<8> number) {
        meta.leaf = true;
        meta.up = port;
        meta.number = number;
    }
    table parents {
        key = { hdr.agg.job : exact; }
        actions = { parent; NoAction; }
        default_action = NoAction();
        size = 64;
    }

    apply {
        meta.admitted = false;
        meta.leaf = false;
        bool from_above = false;
        if (hdr.agg.isValid()) {
            if (jobs.apply().hit) {
                parents.apply();
                if (hdr.agg.kind == CONTRIBUTION) {
                    workers.apply();
                } else if (hdr.agg.kind == RESULT) {
                    from_above = meta.leaf && sm.ingress_port == meta.up;
                }
            }
        }

        bit<32> index = meta.base + (hdr.agg.chunk & meta.mask);
        bit<32> total;
        bit<8> bits;
        bit<32> held;
        bit<1> done;
        sum.read(total, index);
        seen.read(bits, index);
        chunk.read(held, index);
        final.read(done, index);

        if (from_above) {
            //@ task 2
            //@| // TODO 2: a result of the chunk in this version, whose partial sum is complete: keep the result, note
            //@| // in `final` that it is there, and send it to the workers. Drop any other result, and a result that
            //@| // this switch has already.
            //@| drop();
            if (hdr.agg.chunk == held && bits == meta.all_bits && done == 0) {
                sum.write(index, hdr.agg.value);
                final.write(index, 1);
                sm.mcast_grp = meta.group;
            } else {
                drop();
            }
            //@ end
        } else if (meta.admitted) {
            bit<8> mine = 8w1 << hdr.agg.worker;
            bool stale = (int<32>) (hdr.agg.chunk - held) < 0;
            if (hdr.agg.chunk != held) {
                total = 0;
                bits = 0;
            }
            if (stale) {
                drop();
            } else if ((bits & mine) != 0) {
                if (bits == meta.all_bits) {
                    //@ task 3
                    //@| // TODO 3: the worker has no result yet. Without a result here, the partial sum may be lost, or the
                    //@| // result: send the partial sum up again.
                    //@| become_result(total);
                    //@| sm.egress_spec = sm.ingress_port;
                    if (done == 1) {
                        become_result(total);
                        sm.egress_spec = sm.ingress_port;
                    } else {
                        send_up(total);
                    }
                    //@ end
                } else {
                    drop();
                }
            } else {
                total = total + hdr.agg.value;
                bits = bits | mine;
                sum.write(index, total);
                seen.write(index, bits);
                chunk.write(index, hdr.agg.chunk);
                final.write(index, 0);
                if (bits != meta.all_bits) {
                    drop();
                } else if (meta.leaf) {
                    send_up(total);
                } else {
                    final.write(index, 1);
                    become_result(total);
                    sm.mcast_grp = meta.group;
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
