// SPDX-License-Identifier: Apache-2.0
//
// Decides who may add to a sum (protocol.md, 5.1). The controller binds (port, source address, job, rank) to a worker's
// bit and its job's lease. A packet that matches no entry cannot touch a slot, and a job cannot touch another's slots.

control Admission(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(512, CounterType.packets_and_bytes) malformed;
    counter(512, CounterType.packets_and_bytes) not_admitted;
    counter(512, CounterType.packets_and_bytes) wrong_epoch;
    direct_counter(CounterType.packets_and_bytes) admitted;

    action admit(worker_bitmap_t worker, worker_bitmap_t all, bit<32> slot_base, bit<32> slot_mask, epoch_t epoch,
                 bit<16> result_group) {
        admitted.count();
        meta.worker = worker;
        meta.all = all;
        meta.slot_base = slot_base;
        meta.slot_mask = slot_mask;
        meta.epoch = epoch;
        meta.result_group = result_group;
        meta.job = hdr.inagg.job;
        meta.rank = hdr.inagg.rank;
    }

    action refuse() {
        admitted.count();
        meta.dropped = true;
    }

    table admission {
        key = {
            standard_metadata.ingress_port : exact @name("port");
            hdr.ipv4.src : exact @name("source");
            hdr.inagg.job : exact @name("job");
            hdr.inagg.rank : exact @name("rank");
        }
        actions = { admit; @defaultonly refuse; }
        size = 4096;
        const default_action = refuse();
        counters = admitted;
    }

    action drop() {
        meta.dropped = true;
        mark_to_drop(standard_metadata);
    }

    apply {
        // Lengths must be exact: the last contribution becomes the result, so no bytes may follow its payload.
        bit<16> payload_bytes = hdr.udp.length - UDP_HEADER_BYTES - INAGG_HEADER_BYTES;
        bool data = hdr.inagg.kind == KIND_DATA && payload_bytes == WORDS * WORD_BYTES;
        bool exponent = hdr.inagg.kind == KIND_EXPONENT && payload_bytes == 0;
        if (standard_metadata.parser_error != error.NoError || standard_metadata.checksum_error != 0
            || !hdr.inagg.isValid() || hdr.inagg.version != INAGG_VERSION
            || (bit<16>) hdr.inagg.announced[9:0] > MAX_EXPONENT
            || hdr.inagg.announced_check != hdr.inagg.announced + EXPONENT_CHECK
            || standard_metadata.packet_length != (bit<32>) hdr.ipv4.total_length + (bit<32>) ETHERNET_HEADER_BYTES
            || hdr.ipv4.total_length != hdr.udp.length + IPV4_HEADER_BYTES || !(data || exponent)) {
            malformed.count((bit<32>) standard_metadata.ingress_port);
            drop();
        } else {
            admission.apply();
            if (meta.dropped) {
                not_admitted.count((bit<32>) standard_metadata.ingress_port);
                drop();
            } else if (hdr.inagg.epoch != meta.epoch) {
                wrong_epoch.count((bit<32>) standard_metadata.ingress_port);
                drop();
            }
        }
    }
}
