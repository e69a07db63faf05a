// SPDX-License-Identifier: Apache-2.0
//
// The aggregator: slot versions and the decision table of protocol.md, 5.2.

control Slots(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(512, CounterType.packets_and_bytes) started;
    counter(512, CounterType.packets_and_bytes) added;
    counter(512, CounterType.packets_and_bytes) completed;
    counter(512, CounterType.packets_and_bytes) result_resent;
    counter(512, CounterType.packets_and_bytes) duplicate_pending;
    counter(512, CounterType.packets_and_bytes) stale;
    counter(512, CounterType.packets_and_bytes) ahead;

    // One entry for each slot version. Entries are never cleared: the next chunk, or a chunk of another epoch,
    // overwrites them. So the rest of a crashed job does no harm.
    register<epoch_t>(SLOT_VERSIONS) slot_epoch;
    register<chunk_t>(SLOT_VERSIONS) slot_chunk;
    register<worker_bitmap_t>(SLOT_VERSIONS) slot_workers;
    register<bit<32>>(SLOT_VERSIONS) slot_announced;    // both announced fields of the header
    register<bit<32>>(SLOT_VERSIONS) slot_checksum;
    register<word_t>(SLOT_VERSIONS * WORDS) pool;

    bit<32> slot;
    worker_bitmap_t workers;

    // Chunk c uses slot c mod S, version (c div S) mod 2. S is a power of two, so c mod 2S is both at once.
    action load_slot(out epoch_t epoch, out chunk_t chunk) {
        slot = meta.slot_base + (hdr.inagg.chunk & meta.slot_mask);
        slot_epoch.read(epoch, slot);
        slot_chunk.read(chunk, slot);
        slot_workers.read(workers, slot);
    }

    // Finds whether chunk c - S, which is in the slot's other version, is complete.
    action look_back(out bool complete) {
        chunk_t before = hdr.inagg.chunk - (meta.slot_mask >> 1) - 1;
        bit<32> other = meta.slot_base + (before & meta.slot_mask);
        epoch_t epoch;
        chunk_t chunk;
        worker_bitmap_t added_there;
        slot_epoch.read(epoch, other);
        slot_chunk.read(chunk, other);
        slot_workers.read(added_there, other);
        complete = epoch == hdr.inagg.epoch && chunk == before && added_there == meta.all;
    }

    action write_announced() {
        slot_announced.write(slot, hdr.inagg.announced ++ hdr.inagg.announced_check);
    }

    // OR of the flags, maximum of the exponents.
    action combine(inout announced_t own, in announced_t held) {
        exponent_t exponent = held[9:0] > own[9:0] ? held[9:0] : own[9:0];
        own = (own[15:10] | held[15:10]) ++ exponent;
    }

    action start_header() {
        workers = meta.worker;
        slot_epoch.write(slot, hdr.inagg.epoch);
        slot_chunk.write(slot, hdr.inagg.chunk);
        slot_workers.write(slot, workers);
        write_announced();
        slot_checksum.write(slot, hdr.inagg.checksum);
    }

    action start_words() {
        for (bit<32> i = 0; i < WORDS; i = i + 1) {
            pool.write(slot * WORDS + i, hdr.word[i].value);
        }
    }

    action add_header() {
        bit<32> announced;
        bit<32> checksum;
        workers = workers | meta.worker;
        slot_workers.write(slot, workers);
        // The two fields are combined separately, so that a receiver sees whether one of them is damaged (3.2).
        slot_announced.read(announced, slot);
        combine(hdr.inagg.announced, announced[31:16]);
        combine(hdr.inagg.announced_check, announced[15:0]);
        write_announced();
        slot_checksum.read(checksum, slot);
        hdr.inagg.checksum = hdr.inagg.checksum + checksum;
        slot_checksum.write(slot, hdr.inagg.checksum);
    }

    action add_words() {
        for (bit<32> i = 0; i < WORDS; i = i + 1) {
            word_t sum;
            pool.read(sum, slot * WORDS + i);
            hdr.word[i].value = hdr.word[i].value + sum;
            pool.write(slot * WORDS + i, hdr.word[i].value);
        }
    }

    action recall_header() {
        bit<32> announced;
        slot_announced.read(announced, slot);
        hdr.inagg.announced = announced[31:16];
        hdr.inagg.announced_check = announced[15:0];
        slot_checksum.read(hdr.inagg.checksum, slot);
    }

    // Through a local: an assertion of BMv2 fails when a register is read into a stack element with a variable index.
    action recall_words() {
        for (bit<32> i = 0; i < WORDS; i = i + 1) {
            word_t sum;
            pool.read(sum, slot * WORDS + i);
            hdr.word[i].value = sum;
        }
    }

    // The packet turns into the result: from the aggregator, of the RESULT kind. Egress writes the receiver.
    action make_result() {
        ipv4_address_t aggregator = hdr.ipv4.dst;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = aggregator;
        // With this, results of consecutive chunks are the segments of one large datagram (protocol.md, 2).
        hdr.ipv4.identification = hdr.inagg.chunk[15:0];
        hdr.ipv4.ttl = OWN_TTL;
        hdr.udp.src_port = INAGG_PORT;
        hdr.udp.checksum = 0;
        hdr.inagg.kind = hdr.inagg.kind | KIND_RESULT;
    }

    action multicast_result() {
        make_result();
        standard_metadata.mcast_grp = meta.result_group;
    }

    action resend_result() {
        make_result();
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }

    apply {
        bit<32> port = (bit<32>) standard_metadata.ingress_port;
        bool data = hdr.inagg.kind == KIND_DATA;
        epoch_t epoch;
        chunk_t chunk;
        load_slot(epoch, chunk);
        // Serial-number arithmetic (RFC 1982): positive if the packet's chunk is newer than the version's.
        int<32> age = (int<32>) (hdr.inagg.chunk - chunk);

        // The version holds another epoch or an older chunk.
        bool old = epoch != hdr.inagg.epoch || age > 0;
        bool starts = false;
        if (old) {
            // A worker sends c after the result of c - S. Any other chunk is damaged, and would overwrite a version
            // that workers still need.
            look_back(starts);
            starts = starts || (epoch != hdr.inagg.epoch && hdr.inagg.chunk <= meta.slot_mask >> 1);
        }

        bool contributed = false;
        if (starts) {
            start_header();
            if (data) {
                start_words();
            }
            started.count(port);
            contributed = true;
        } else if (old) {
            ahead.count(port);
        } else if (age < 0) {
            stale.count(port);
        } else if ((workers & meta.worker) == 0) {
            add_header();
            if (data) {
                add_words();
            }
            added.count(port);
            contributed = true;
        } else if (workers == meta.all) {
            recall_header();
            if (data) {
                recall_words();
            }
            resend_result();
            result_resent.count(port);
        } else {
            duplicate_pending.count(port);
        }

        if (contributed && workers == meta.all) {
            multicast_result();
            completed.count(port);
        } else if ((hdr.inagg.kind & KIND_RESULT) == 0) {
            mark_to_drop(standard_metadata);
        }
    }
}
