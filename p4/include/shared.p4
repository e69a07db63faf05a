// SPDX-License-Identifier: Apache-2.0
//
// Slots that jobs share: a cache in front of the job's servers (protocol.md, 5.7). What a slot combines goes on to the
// server, or to the switch above, as one partial sum; what finds no slot goes on as it is. The server adds nothing
// twice, so a slot may be lost, or its sum sent on, at any time.

control SharedSlots(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata)(
        register<epoch_t> slot_epoch, register<chunk_t> slot_chunk, register<member_bitmap_t> slot_members,
        register<bit<64>> slot_header, register<word_t> pool) {
    counter(512, CounterType.packets_and_bytes) slot_taken;
    counter(512, CounterType.packets_and_bytes) slot_added;
    counter(512, CounterType.packets_and_bytes) slot_combined;
    counter(512, CounterType.packets_and_bytes) slot_flushed;
    counter(512, CounterType.packets_and_bytes) slot_evicted;
    counter(512, CounterType.packets_and_bytes) slot_expired;
    counter(512, CounterType.packets_and_bytes) slot_collided;
    counter(512, CounterType.packets_and_bytes) slot_freed;
    counter(512, CounterType.packets_and_bytes) passed;
    counter(512, CounterType.packets_and_bytes) query_forwarded;
    counter(512, CounterType.packets_and_bytes) result_forwarded;
    counter(512, CounterType.packets_and_bytes) answer_unexpected;
    counter(512, CounterType.packets_and_bytes) no_server;
    direct_counter(CounterType.packets_and_bytes) displaced;

    // When a slot was taken, and by whom: job, number of its server, priority.
    register<bit<48>>(SLOT_VERSIONS) slot_time;
    register<bit<32>>(SLOT_VERSIONS) slot_owner;

    bit<32> slot;
    bit<16> job;         // of what leaves
    bit<8> way;          // the number of its server, or 0 for the switch above
    bit<8> priority;     // of the packet's job
    bit<48> expiry;      // microseconds after which what was taken may be evicted
    bit<32> owner;
    bit<48> taken_at;
    epoch_t epoch;
    chunk_t chunk;
    member_bitmap_t members;
    bool expired;        // what is in the slot is too old

    // The slots from `base` on, a power of two of them: chunks that follow one another have slots of their own. `offset`
    // spreads the jobs. `servers` is a power of two too; 1 below another switch. 2^run_bits chunks in a row go to one.
    // `homes`: the ranks that send the chunks of the server in their process to it, past this switch; rank r has number r.
    // `mac`, `ip`: this switch's. What leaves may be another job's than the packet's, whatever that was addressed to.
    action share(bit<32> base, bit<32> mask, bit<32> offset, bit<8> servers, bit<8> run_bits, member_bitmap_t homes,
                 bit<8> job_priority, bit<48> expiry_us, mac_address_t mac, ipv4_address_t ip) {
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = ip;
        slot = base + (offset + hdr.inagg.chunk & mask);
        way = (bit<8>)(hdr.inagg.chunk >> run_bits) & (servers - 1);
        meta.all = meta.all & ~(homes & ((member_bitmap_t) 1 << way));
        priority = job_priority;
        expiry = expiry_us;
    }

    table sharing {
        key = { meta.job : exact @name("job"); }
        actions = { share; @defaultonly NoAction; }
        size = 4096;
        const default_action = NoAction();
    }

    action load_slot() {
        slot_epoch.read(epoch, slot);
        slot_chunk.read(chunk, slot);
        slot_members.read(members, slot);
        slot_owner.read(owner, slot);
        slot_time.read(taken_at, slot);
    }

    action write_header() {
        slot_header.write(slot, hdr.inagg.announced ++ hdr.inagg.announced_check ++ hdr.inagg.checksum);
    }

    action take_header() {
        slot_epoch.write(slot, hdr.inagg.epoch);
        slot_chunk.write(slot, hdr.inagg.chunk);
        slot_members.write(slot, meta.member);
        slot_time.write(slot, standard_metadata.ingress_global_timestamp);
        slot_owner.write(slot, meta.job ++ way ++ priority);
        write_header();
    }

    // The packet's contribution takes the slot.
    action take() {
        take_header();
        for (bit<32> i = 0; i < WORDS; i = i + 1) {
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

    // The packet's contribution takes the slot, and the packet becomes what the slot had, perhaps of another job.
    action swap() {
        bit<64> held;
        slot_header.read(held, slot);
        take_header();
        hdr.inagg.announced = held[63:48];
        hdr.inagg.announced_check = held[47:32];
        hdr.inagg.checksum = held[31:0];
        for (bit<32> i = 0; i < WORDS; i = i + 1) {
            word_t sum;
            pool.read(sum, slot * WORDS + i);
            pool.write(slot * WORDS + i, hdr.word[i].value);
            hdr.word[i].value = sum;
        }
        hdr.inagg.epoch = epoch;
        hdr.inagg.chunk = chunk;
        hdr.inagg.job = owner[31:16];
        job = owner[31:16];
        way = owner[15:8];
    }

    // The packet becomes its sum with what the slot has.
    action add() {
        bit<64> held;
        members = members | meta.member;
        slot_header.read(held, slot);
        combine(hdr.inagg.announced, held[63:48]);
        combine(hdr.inagg.announced_check, held[47:32]);
        hdr.inagg.checksum = hdr.inagg.checksum + held[31:0];
        for (bit<32> i = 0; i < WORDS; i = i + 1) {
            word_t sum;
            pool.read(sum, slot * WORDS + i);
            hdr.word[i].value = hdr.word[i].value + sum;
        }
    }

    action keep() {
        slot_members.write(slot, members);
        write_header();
        for (bit<32> i = 0; i < WORDS; i = i + 1) {
            pool.write(slot * WORDS + i, hdr.word[i].value);
        }
    }

    action empty() {
        slot_members.write(slot, 0);
    }

    // The packet becomes what the slot has.
    action recall() {
        recall_header();
        for (bit<32> i = 0; i < WORDS; i = i + 1) {
            word_t sum;
            pool.read(sum, slot * WORDS + i);
            hdr.word[i].value = sum;
        }
    }

    action grow() {
        hdr.ipv4.total_length = hdr.ipv4.total_length + MEMBERS_BYTES;
        hdr.udp.length = hdr.udp.length + MEMBERS_BYTES;
    }

    // What goes on says whose contributions it has, or who asks; what comes from a worker does not.
    action add_members() {
        hdr.members.setValid();
        grow();
    }

    action add_waits_with() {
        hdr.waits_with.setValid();
        hdr.waits_with.bits = 0;
        grow();
    }

    // To the switch above, as its member `rank`; or to the server.
    action send(bit<9> port, mac_address_t mac, ipv4_address_t ip, bit<16> udp_port, bit<8> rank) {
        make_own(hdr);
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = ip;
        hdr.udp.dst_port = udp_port;
        hdr.inagg.rank = rank;
        hdr.members.bits = members;
        meta.to_parent = true;
        standard_metadata.egress_spec = port;
    }

    table server {
        key = {
            job : exact @name("job");
            way : exact @name("server");
        }
        actions = { send; NoAction; }
        size = 16384;
        const default_action = NoAction();
    }

    // The jobs that lose slots, by number: those of ports do not say whose sums went on early. Direct counters need no
    // array with a cell for each of 2^16 jobs, and those of a new job begin at 0.
    action count_displaced() {
        displaced.count();
    }

    table displacement {
        key = {
            job : exact @name("job");
            expired : exact @name("expired");
        }
        actions = { count_displaced; @defaultonly NoAction; }
        size = 8192;
        const default_action = NoAction();
        counters = displaced;
    }

    apply {
        bit<32> port = (bit<32>) standard_metadata.ingress_port;
        bool goes_on = false;
        job = meta.job;
        slot = 0;
        way = 0;
        priority = 0;
        expiry = 0;
        sharing.apply();
        @stripe(slot >> RUN_BITS) {
            load_slot();
            bool own = epoch == hdr.inagg.epoch && chunk == hdr.inagg.chunk;
            // A packet that took the slot on another thread of the switch may have a later time than this one.
            expired = standard_metadata.ingress_global_timestamp > taken_at &&
                      standard_metadata.ingress_global_timestamp - taken_at > expiry;
            if (meta.from_parent && meta.query) {
                answer_unexpected.count(port);    // they go past the switch
                mark_to_drop(standard_metadata);
            } else if (meta.from_parent) {
                // A result, for all workers below. What the slot still has of the chunk is of no use.
                if (own && members != 0) {
                    empty();
                    slot_freed.count(port);
                }
                make_own(hdr);
                standard_metadata.mcast_grp = meta.result_group;
                result_forwarded.count(port);
            } else {
                if (!hdr.members.isValid()) {
                    add_members();
                    if (meta.query) {
                        add_waits_with();
                    }
                }
                if (meta.query) {
                    if (own && (members & meta.member) != 0) {
                        // The asker's contribution waits here, with those of all workers below.
                        hdr.waits_with.bits = meta.all;
                    } else if (own && (members & hdr.waits_with.bits) != 0) {
                        // It waits in a switch below for a worker whose contribution has come past it.
                        hdr.waits_with.bits = 0;
                    }
                    members = meta.member;
                    query_forwarded.count(port);
                    goes_on = true;
                } else if (!meta.data || meta.member == meta.all || (own && members == 0)) {
                    // It has no words, or nothing to be combined with, or its slot's sum has gone on already.
                    members = meta.member;
                    passed.count(port);
                    goes_on = true;
                } else if (own) {
                    if ((members & meta.member) != 0) {
                        // Its sender asks for it again: the sum goes on as far as it is.
                        recall();
                        empty();
                        slot_flushed.count(port);
                        goes_on = true;
                    } else {
                        add();
                        if (members == meta.all) {
                            empty();
                            slot_combined.count(port);
                            goes_on = true;
                        } else {
                            keep();
                            slot_added.count(port);
                        }
                    }
                } else if (members == 0) {
                    take();
                    slot_taken.count(port);
                } else if (expired || owner[7:0] < priority) {
                    swap();
                    displacement.apply();
                    if (expired) {
                        slot_expired.count(port);
                    } else {
                        slot_evicted.count(port);
                    }
                    goes_on = true;
                } else {
                    members = meta.member;
                    slot_collided.count(port);
                    goes_on = true;
                }
                if (!goes_on) {
                    mark_to_drop(standard_metadata);
                } else if (!server.apply().hit) {
                    no_server.count(port);
                    mark_to_drop(standard_metadata);
                }
            }
        }
    }
}
