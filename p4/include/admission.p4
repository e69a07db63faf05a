// SPDX-License-Identifier: Apache-2.0
//
// Decides who may add to a sum, and whose sums count (protocol.md, 5.1). The controller binds (port, source address,
// job, rank) to a member's bit and its job's lease, and (port, source address, job) to a switch above. A packet that
// matches no entry cannot touch a slot, and a job cannot touch another's slots.

control Admission(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(512, CounterType.packets_and_bytes) malformed;
    counter(512, CounterType.packets_and_bytes) not_admitted;
    counter(512, CounterType.packets_and_bytes) wrong_epoch;
    direct_counter(CounterType.packets_and_bytes) admitted;
    direct_counter(CounterType.packets_and_bytes) accepted;

    action use_lease(in member_bitmap_t all, in bit<32> slot_base, in bit<32> slot_mask, in epoch_t epoch,
                     in bit<16> result_group) {
        meta.all = all;
        meta.slot_base = slot_base;
        meta.slot_mask = slot_mask;
        meta.epoch = epoch;
        meta.result_group = result_group;
        meta.job = hdr.inagg.job;
        meta.rank = hdr.inagg.rank;
    }

    action admit(member_bitmap_t member, member_bitmap_t all, bit<32> slot_base, bit<32> slot_mask, epoch_t epoch,
                 bit<16> result_group, chunk_t first_chunk, bit<8> parents, bit<8> run_bits) {
        admitted.count();
        use_lease(all, slot_base, slot_mask, epoch, result_group);
        meta.member = member;
        meta.first_chunk = first_chunk;
        meta.parents = parents;
        meta.run_bits = run_bits;
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

    // What comes from a parent is addressed to this switch or to the job's group. From here on it is as if this switch
    // had been asked: the source of what leaves will be `mac` and `ip`. Member 0 is behind `first_port`.
    action accept_result(member_bitmap_t all, bit<32> slot_base, bit<32> slot_mask, epoch_t epoch,
                         bit<16> result_group, mac_address_t mac, ipv4_address_t ip, bit<9> first_port) {
        accepted.count();
        use_lease(all, slot_base, slot_mask, epoch, result_group);
        meta.from_parent = true;
        meta.first_port = first_port;
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = ip;
    }

    // What comes from a server below goes on as it is, to the switch that sends the job's results.
    action relay_result(epoch_t epoch, bit<9> up) {
        accepted.count();
        meta.epoch = epoch;
        meta.passes = true;
        standard_metadata.egress_spec = up;
    }

    action refuse_result() {
        accepted.count();
        meta.dropped = true;
    }

    table parent {
        key = {
            standard_metadata.ingress_port : exact @name("port");
            hdr.ipv4.src : exact @name("source");
            hdr.inagg.job : exact @name("job");
        }
        actions = { accept_result; relay_result; @defaultonly refuse_result; }
        size = 4096;
        const default_action = refuse_result();
        counters = accepted;
    }

    action drop() {
        meta.dropped = true;
        mark_to_drop(standard_metadata);
    }

    apply {
        // Lengths must be exact: the last contribution becomes the result, so no bytes may follow its payload.
        bit<16> payload_bytes = hdr.udp.length - UDP_HEADER_BYTES - INAGG_HEADER_BYTES;
        bool down = (hdr.inagg.kind & KIND_RESULT) != 0;
        meta.query = (hdr.inagg.kind & KIND_QUERY) != 0;
        bit<4> chunk_kind = hdr.inagg.kind & ~(KIND_RESULT | KIND_QUERY);
        meta.data = chunk_kind == KIND_DATA;
        bool from_switch = hdr.members.isValid();    // below
        bit<16> bitmap_bytes = from_switch ? (meta.query ? 2 * MEMBERS_BYTES : MEMBERS_BYTES) : 0;
        bit<16> word_bytes = meta.data && !meta.query ? WORDS * WORD_BYTES : 0;
        bool kind_and_length = (meta.data || chunk_kind == KIND_EXPONENT) && !(down && from_switch)
                               && payload_bytes == bitmap_bytes + word_bytes;
        if (standard_metadata.parser_error != error.NoError || standard_metadata.checksum_error != 0
            || !hdr.inagg.isValid() || hdr.inagg.version != INAGG_VERSION
            || (bit<16>) hdr.inagg.announced[9:0] > MAX_EXPONENT
            || hdr.inagg.announced_check != hdr.inagg.announced + EXPONENT_CHECK
            || standard_metadata.packet_length != (bit<32>) hdr.ipv4.total_length + (bit<32>) ETHERNET_HEADER_BYTES
            || hdr.ipv4.total_length != hdr.udp.length + IPV4_HEADER_BYTES || !kind_and_length) {
            malformed.count((bit<32>) standard_metadata.ingress_port);
            drop();
        } else {
            if (down) {
                parent.apply();
            } else {
                admission.apply();
            }
            if (from_switch) {
                // In place of all workers below that switch.
                meta.dropped = meta.dropped || meta.slot_mask != 0 || hdr.members.bits == 0
                               || (hdr.members.bits & ~meta.member) != 0;
                meta.member = hdr.members.bits;
            }
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
