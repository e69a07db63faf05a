// SPDX-License-Identifier: Apache-2.0
//
// The aggregator: slot versions and the decision tables of protocol.md, 5.2. A switch below another is to it what a
// worker is to this one: its partial sum goes up as a contribution, and the result that comes down is kept.

const member_bitmap_t FIRST_MEMBER = 1;

control Slots(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata)(
        register<epoch_t> slot_epoch, register<chunk_t> slot_chunk, register<member_bitmap_t> slot_members,
        register<bit<64>> slot_header, register<word_t> pool) {
    counter(512, CounterType.packets_and_bytes) started;
    counter(512, CounterType.packets_and_bytes) added;
    counter(512, CounterType.packets_and_bytes) completed;
    counter(512, CounterType.packets_and_bytes) result_resent;
    counter(512, CounterType.packets_and_bytes) duplicate_pending;
    counter(512, CounterType.packets_and_bytes) query_again;
    counter(512, CounterType.packets_and_bytes) query_held;
    counter(512, CounterType.packets_and_bytes) query_passed;
    counter(512, CounterType.packets_and_bytes) answer_passed;
    counter(512, CounterType.packets_and_bytes) stale;
    counter(512, CounterType.packets_and_bytes) ahead;
    counter(512, CounterType.packets_and_bytes) partial_sent;
    counter(512, CounterType.packets_and_bytes) partial_resent;
    counter(512, CounterType.packets_and_bytes) no_parent;
    counter(512, CounterType.packets_and_bytes) result_kept;
    counter(512, CounterType.packets_and_bytes) result_duplicate;
    counter(512, CounterType.packets_and_bytes) result_unexpected;

    register<bit<8>>(SLOT_VERSIONS) slot_final;         // 1: the words are the job's sum, not a partial one

    bit<32> slot;
    member_bitmap_t members;
    bit<8> final;
    bit<8> parent;    // of those that share the job's chunks

    // Chunk c uses slot c mod S, version (c div S) mod 2. S is a power of two, so c mod 2S is both at once.
    action load_slot(out epoch_t epoch, out chunk_t chunk) {
        slot = meta.slot_base + (hdr.inagg.chunk & meta.slot_mask);
        slot_epoch.read(epoch, slot);
        slot_chunk.read(chunk, slot);
        slot_members.read(members, slot);
    }

    // Finds whether this switch has the result of chunk c - S, which is in the slot's other version.
    action look_back(out bool finished) {
        chunk_t before = hdr.inagg.chunk - (meta.slot_mask >> 1) - 1;
        bit<32> other = meta.slot_base + (before & meta.slot_mask);
        epoch_t epoch;
        chunk_t chunk;
        bit<8> final_there;
        slot_epoch.read(epoch, other);
        slot_chunk.read(chunk, other);
        slot_final.read(final_there, other);
        finished = epoch == hdr.inagg.epoch && chunk == before && final_there == 1;
    }

    action write_header() {
        slot_header.write(slot, hdr.inagg.announced ++ hdr.inagg.announced_check ++ hdr.inagg.checksum);
    }

    action start_header() {
        members = meta.member;
        slot_epoch.write(slot, hdr.inagg.epoch);
        slot_chunk.write(slot, hdr.inagg.chunk);
        slot_members.write(slot, members);
        slot_final.write(slot, 0);
        write_header();
    }

    action write_words() {
        for (bit<32> i = 0; i < WORDS; i = i + 1) {
            pool.write(slot * WORDS + i, hdr.word[i].value);
        }
    }

    // What another job has left must not leave with a packet of the other kind.
    action clear_words() {
        for (bit<32> i = 0; i < WORDS; i = i + 1) {
            pool.write(slot * WORDS + i, 0);
        }
    }

    action add_header() {
        bit<64> held;
        members = members | meta.member;
        slot_members.write(slot, members);
        // The two fields are combined separately, so that a receiver sees whether one of them is damaged (3.2).
        slot_header.read(held, slot);
        combine(hdr.inagg.announced, held[63:48]);
        combine(hdr.inagg.announced_check, held[47:32]);
        hdr.inagg.checksum = hdr.inagg.checksum + held[31:0];
        write_header();
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
        bit<64> held;
        slot_header.read(held, slot);
        hdr.inagg.announced = held[63:48];
        hdr.inagg.announced_check = held[47:32];
        hdr.inagg.checksum = held[31:0];
    }

    // Through a local: an assertion of BMv2 fails when a register is read into a stack element with a variable index.
    action recall_words() {
        for (bit<32> i = 0; i < WORDS; i = i + 1) {
            word_t sum;
            pool.read(sum, slot * WORDS + i);
            hdr.word[i].value = sum;
        }
    }

    action make_result() {
        make_own(hdr);
        hdr.inagg.kind = hdr.inagg.kind | KIND_RESULT;
    }

    // The version holds the job's sum, and so does the packet.
    action finish() {
        slot_final.write(slot, 1);
        make_result();
        standard_metadata.mcast_grp = meta.result_group;
    }

    // The result, or an answer, leaves to the member that the packet came from.
    action reply() {
        make_result();
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }

    // An answer leaves to member 0, whose query has been passed up.
    action pass_down() {
        make_own(hdr);
        meta.rank = 0;
        standard_metadata.egress_spec = meta.first_port;
    }

    // The partial sum becomes this switch's contribution, as member `rank` of the switch above; or a query its own.
    action send_up(bit<9> port, mac_address_t mac, ipv4_address_t ip, bit<8> rank) {
        make_own(hdr);
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = ip;
        hdr.udp.dst_port = INAGG_PORT;
        hdr.inagg.rank = rank;
        meta.to_parent = true;
        standard_metadata.egress_spec = port;
    }

    table uplink {
        key = {
            meta.job : exact @name("job");
            parent : exact @name("parent");
        }
        actions = { send_up; NoAction; }
        size = 4096;
        const default_action = NoAction();
    }

    apply {
        bit<32> port = (bit<32>) standard_metadata.ingress_port;
        epoch_t epoch;
        chunk_t chunk;
        load_slot(epoch, chunk);
        // Serial-number arithmetic (RFC 1982): positive if the packet's chunk is newer than the version's.
        int<32> age = (int<32>) (hdr.inagg.chunk - chunk);

        // The version holds another epoch or an older chunk.
        bool old = epoch != hdr.inagg.epoch || age > 0;
        bool contributed = false;
        bool leaves = false;
        bool goes_up = false;
        if (!old && age < 0) {
            stale.count(port);
        } else if (meta.from_parent) {
            slot_final.read(final, slot);
            if (old || members != meta.all) {
                result_unexpected.count(port);
            } else if (final == 1) {
                result_duplicate.count(port);
            } else if (meta.query) {
                pass_down();
                answer_passed.count(port);
                leaves = true;
            } else {
                write_header();
                if (meta.data) {
                    write_words();
                }
                finish();
                result_kept.count(port);
                leaves = true;
            }
        } else if (meta.query) {
            slot_final.read(final, slot);
            if (old || (members & meta.member) == 0 || final == 1) {
                // The contribution is missing, or it is what the result will leave in: no packet can grow that much
                // on BMv2.
                hdr.inagg.announced = FLAG_AGAIN ++ 10w0;
                hdr.inagg.announced_check = FLAG_AGAIN ++ EXPONENT_CHECK[9:0];
                reply();
                query_again.count(port);
                leaves = true;
            } else if (members == meta.all && meta.member == FIRST_MEMBER) {
                query_passed.count(port);
                goes_up = true;
            } else {
                reply();
                query_held.count(port);
                leaves = true;
            }
        } else if (old) {
            // A worker sends c after the result of c - S. Any other chunk is damaged, and would overwrite a version
            // that workers still need.
            bool starts;
            look_back(starts);
            // A difference mod 2^32: the first chunk may be just below 2^32.
            bool first = hdr.inagg.chunk - meta.first_chunk <= meta.slot_mask >> 1;
            if (starts || (epoch != hdr.inagg.epoch && first)) {
                start_header();
                if (meta.data) {
                    write_words();
                } else {
                    clear_words();
                }
                started.count(port);
                contributed = true;
            } else {
                ahead.count(port);
            }
        } else if ((members & meta.member) == 0) {
            add_header();
            if (meta.data) {
                add_words();
            }
            added.count(port);
            contributed = true;
        } else {
            slot_final.read(final, slot);
            // All members miss the result alike. One of them asking is enough.
            bool asks_above = final == 0 && members == meta.all && meta.member == FIRST_MEMBER;
            if (final == 1 || asks_above) {
                recall_header();
                if (meta.data) {
                    recall_words();
                }
            }
            if (final == 1) {
                reply();
                result_resent.count(port);
                leaves = true;
            } else if (asks_above) {
                partial_resent.count(port);
                goes_up = true;
            } else {
                duplicate_pending.count(port);
            }
        }

        if (contributed && members == meta.all) {
            if (meta.parents == 0) {
                finish();
                completed.count(port);
                leaves = true;
            } else {
                partial_sent.count(port);
                goes_up = true;
            }
        }
        if (goes_up) {
            parent = (bit<8>)(hdr.inagg.chunk >> meta.run_bits) & (meta.parents - 1);
            if (uplink.apply().hit) {
                leaves = true;
            } else {
                no_parent.count(port);
            }
        }
        if (!leaves) {
            mark_to_drop(standard_metadata);
        }
    }
}
