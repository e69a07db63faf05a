// SPDX-License-Identifier: Apache-2.0
//
// The C ABI of a compiled P4 program. The compiler emits one shared library per program. The packet loop
// (C++) and inagg_switch.switch (ctypes) call it through the function table that isw_program_v1() returns.
//
// Objects are named by their P4Info ids (0x02...... is a table, 0x01...... an action, and so on). A caller
// needs the program's P4Info and nothing else.
//
// Values are big-endian, (width + 7) / 8 bytes; bits above the width are zero. A key is an array with one
// isw_match for each match field, in P4Info order. Action parameters are the values in P4Info order, without
// gaps.
//
// Results: 0, or -errno:
//   -ENOENT  no such table, action, entry, group, session, member, object or index
//   -EEXIST  an entry with this key and priority exists
//   -ENOSPC  the table is full (its `size`)
//   -EINVAL  a value does not fit its width, a length is wrong, a match does not fit its kind, or the
//   priority
//            is wrong: > 0 if the table has a ternary, range or optional field, else 0
//   -EPERM   the table has const entries, the default action is const, or the action may not be used there
//   -EBUSY   the member or group of an action profile is used by an entry or a group
// A call that fails leaves the program's state as it was.
//
// Threads: a program is made for a number of threads, each with a recursive mutex. process() runs with the
// mutex of its thread held (lock_thread, unlock_thread); every other call after these with all of them (lock,
// unlock). No call takes them itself, so that the packet loop takes one once for a batch of frames. Callbacks
// run with the mutexes of the call held; those of process() may run on several threads at once.
//
// The threads share registers: a thread enters a stripe (@stripe in the P4 program) before it uses the cells
// of the stripe, and leaves it when it enters another one or unlocks; meanwhile others wait. So a caller with
// all mutexes unlocks between packets of different threads, or holds the mutexes twice. All else that a
// packet changes, each thread has for itself: counters are added up when they are read. Entries, groups and
// sessions are the same in all.
#ifndef INAGG_SWITCH_PROGRAM_H
#define INAGG_SWITCH_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ISW_ABI_VERSION 11u

// Called for each packet that leaves through `port`. `frame` is valid during the call only, but its last
// `shared` bytes until process() returns. All packets with shared > 0 in one call of process() have the same
// length and the same last `shared` bytes. `copies`: how many copies of the packet the program makes, this
// one and dropped ones included; more than 1 if it is multicast. `again` is not 0 if the frame is known to
// equal that of the call before, in the same process(); `shared` is then the same too. `priority` is below
// the number of priority queues.
typedef void (*isw_emit_fn)(void* ctx, uint32_t port, const uint8_t* frame, size_t length, size_t shared,
                            size_t copies, int again, uint32_t priority);

// Returns how many packets wait to leave through a port.
typedef uint32_t (*isw_queue_fn)(void* ctx, uint32_t port);

// Two bytes of a frame that are not right yet: a UDP checksum, which a program seldom looks at. fill() writes
// them into the frame.
typedef struct isw_late {
    size_t offset;  // in the frame
    void (*fill)(void* ctx);
    void* ctx;
} isw_late;

// One field of a key, by its match kind; value NULL means "don't care" (lpm, ternary, range and optional
// only):
//   exact, optional  value
//   lpm              value, prefix_length (bits below the prefix must be zero)
//   ternary          value, mask_or_high = mask (value bits outside the mask must be zero)
//   range            value = low, mask_or_high = high, both inclusive
typedef struct isw_match {
    const uint8_t* value;
    const uint8_t* mask_or_high;
    uint32_t prefix_length;
} isw_match;

typedef struct isw_replica {
    uint32_t port;
    uint32_t rid;
} isw_replica;

// A meter's rates: two-rate three-colour (RFC 2698), colour blind. Rates are bytes or packets a second,
// bursts bytes or packets, depending on the meter's type. `is_set` 0: not configured, every packet is green.
typedef struct isw_meter {
    uint64_t cir, cburst, pir, pburst;
    int is_set;
} isw_meter;

// What an entry of a table with an action profile or selector refers to, in place of an action.
enum { ISW_ACTION = 0, ISW_MEMBER = 1, ISW_GROUP = 2 };

// One table entry, as table_entries() shows it. Pointers are valid during the call only.
typedef struct isw_entry {
    const isw_match* match;  // match_count fields; NULL for the default entry
    size_t match_count;
    int32_t priority;
    uint32_t action;
    const uint8_t* params;
    size_t params_length;
    uint64_t packets, bytes;  // direct counter; 0 where the table has none
    int is_const;             // written in the program: cannot be changed
    uint32_t indirect_kind;   // ISW_ACTION, or ISW_MEMBER or ISW_GROUP: then `action` is 0
    uint32_t indirect_id;     // the member or group
    uint64_t last_hit_us;     // `now_us` of the last packet that matched; tables with support_timeout only
    isw_meter meter;          // direct meter
} isw_entry;

typedef void (*isw_entry_fn)(void* ctx, const isw_entry* entry);

// A line of text without the line break.
typedef void (*isw_text_fn)(void* ctx, const char* text, size_t length);
// A member (`member_count` is 0; `action` and `params` are set) or a group: the ids of its members in
// ascending order. A member of weight n stands in the list n times.
typedef struct isw_profile_entry {
    uint32_t id;
    uint32_t action;
    const uint8_t* params;
    size_t params_length;
    const uint32_t* members;
    size_t member_count;
} isw_profile_entry;

typedef void (*isw_profile_fn)(void* ctx, const isw_profile_entry* entry);

// A digest: the fields of its struct in order, (width + 7) / 8 bytes each, without gaps. `digest` is its
// P4Info id.
typedef void (*isw_digest_fn)(void* ctx, uint32_t digest, const uint8_t* data, size_t length);

// A message of log_msg(), or of an assert() or assume() that failed. `message` is a C string.
typedef void (*isw_log_fn)(void* ctx, const char* message);

// A byte of a frame that has `value` under `mask`.
typedef struct isw_condition {
    uint32_t offset;
    uint8_t mask;
    uint8_t value;
} isw_condition;

// Tells frames apart for threads: those that meet all conditions have a big-endian number of `bytes` (1, 2 or
// 4) bytes at `offset`. Frames whose number is the same without its last `shift` bits use the same registers.
// What a program does with a packet does not depend on its thread.
typedef struct isw_steering {
    const isw_condition* conditions;
    size_t condition_count;
    uint32_t offset;
    uint32_t bytes;
    uint32_t shift;
} isw_steering;

typedef struct isw_api {
    uint32_t abi_version;  // ISW_ABI_VERSION

    // Why one thread alone may run the program. NULL: several may, and there is `steering`.
    const char* one_thread;
    const isw_steering* steering;

    // Returns a program with initial state for `threads` threads, at least one. `seed` seeds its random
    // number generators: runs of one thread with equal seeds and equal input are equal. On failure returns
    // NULL and calls `why` with the reason.
    void* (*create)(uint64_t seed, uint32_t threads, isw_text_fn why, void* ctx);
    void (*destroy)(void* program);

    void (*lock)(void* program);
    void (*unlock)(void* program);
    void (*lock_thread)(void* program, uint32_t thread);
    void (*unlock_thread)(void* program, uint32_t thread);

    // Runs one received frame through the pipeline on a thread of the program, numbered from 0; emit is
    // called once for every frame that leaves. `now_us` is a monotonic time in microseconds; the program's
    // timestamps count from the first frame's. Drops a frame of a port above 510 or of more than
    // ISW_MAX_FRAME bytes. `late`: NULL if all bytes of the frame are right; else the program calls fill()
    // once, before anything can depend on these two, or never. `queue`: called before egress, for a program
    // whose egress reads the length of a queue, with the port that a copy leaves by; NULL: queues are empty.
    void (*process)(void* program, uint32_t thread, uint32_t port, const uint8_t* frame, size_t length,
                    uint64_t now_us, const isw_late* late, isw_emit_fn emit, isw_queue_fn queue, void* ctx);

    int (*table_insert)(void* program, uint32_t table, const isw_match* match, int32_t priority,
                        uint32_t action, const uint8_t* params, size_t params_length);
    int (*table_modify)(void* program, uint32_t table, const isw_match* match, int32_t priority,
                        uint32_t action, const uint8_t* params, size_t params_length);
    int (*table_delete)(void* program, uint32_t table, const isw_match* match, int32_t priority);
    // action 0 restores the default action that the program declares; params are then ignored.
    int (*table_set_default)(void* program, uint32_t table, uint32_t action, const uint8_t* params,
                             size_t params_length);
    // Visits `count` entries, beginning with number `first`. The order changes only when an entry is inserted
    // or deleted. The default entry is not visited. Returns the number of entries visited, or -errno.
    int (*table_entries)(void* program, uint32_t table, size_t first, size_t count, isw_entry_fn visit,
                         void* ctx);
    // Visits one entry; -ENOENT if it does not exist.
    int (*table_entry)(void* program, uint32_t table, const isw_match* match, int32_t priority,
                       isw_entry_fn visit, void* ctx);
    int (*table_default)(void* program, uint32_t table, isw_entry_fn visit, void* ctx);

    // Sets a group's replicas, in order. count 0 deletes the group (-ENOENT if it does not exist). Group 0 is
    // -EINVAL. A packet sent to a group that does not exist is dropped.
    int (*multicast_set)(void* program, uint32_t group, const isw_replica* replicas, size_t count);

    // `packets` is 0 for a counter of bytes only, and `bytes` for a counter of packets only.
    int (*counter_read)(void* program, uint32_t counter, uint64_t index, uint64_t* packets, uint64_t* bytes);
    int (*counter_write)(void* program, uint32_t counter, uint64_t index, uint64_t packets, uint64_t bytes);

    int (*direct_counter_read)(void* program, uint32_t table, const isw_match* match, int32_t priority,
                               uint64_t* packets, uint64_t* bytes);
    int (*direct_counter_write)(void* program, uint32_t table, const isw_match* match, int32_t priority,
                                uint64_t packets, uint64_t bytes);

    int (*register_read)(void* program, uint32_t reg, uint64_t index, uint8_t* value);
    int (*register_write)(void* program, uint32_t reg, uint64_t index, const uint8_t* value);

    // Calls `write`, during process(), for every step of every later packet; NULL turns tracing off.
    // -ENOTSUP: the program was not compiled for tracing.
    int (*trace)(void* program, isw_text_fn write, void* ctx);
    // `config` NULL or not set: the meter is always green. Writing a meter fills its buckets.
    int (*meter_read)(void* program, uint32_t meter, uint64_t index, isw_meter* config);
    int (*meter_write)(void* program, uint32_t meter, uint64_t index, const isw_meter* config);
    int (*direct_meter_read)(void* program, uint32_t table, const isw_match* match, int32_t priority,
                             isw_meter* config);
    int (*direct_meter_write)(void* program, uint32_t table, const isw_match* match, int32_t priority,
                              const isw_meter* config);

    // Sets the replicas of clone session `session` (0..32767). Clones are truncated to `max_length` bytes
    // (0: whole). count 0 deletes the session (-ENOENT if it does not exist). A clone to a session that does
    // not exist is dropped.
    int (*clone_set)(void* program, uint32_t session, const isw_replica* replicas, size_t count,
                     uint32_t max_length);

    // process() calls `f` for each digest; NULL: digests are dropped.
    int (*on_digest)(void* program, isw_digest_fn f, void* ctx);
    // process() calls `f` for each message; NULL: messages are dropped.
    int (*on_log)(void* program, isw_log_fn f, void* ctx);

    // Members and groups of an action profile or selector. Their ids are separate: a member and a group may
    // have the same. group_set creates the group or replaces its members. An entry that refers to an empty
    // group runs no action. Deleting a member or group that is used is -EBUSY.
    int (*member_insert)(void* program, uint32_t profile, uint32_t member, uint32_t action,
                         const uint8_t* params, size_t params_length);
    int (*member_modify)(void* program, uint32_t profile, uint32_t member, uint32_t action,
                         const uint8_t* params, size_t params_length);
    int (*member_delete)(void* program, uint32_t profile, uint32_t member);
    int (*group_set)(void* program, uint32_t profile, uint32_t group, const uint32_t* members, size_t count);
    int (*group_delete)(void* program, uint32_t profile, uint32_t group);
    int (*profile_members)(void* program, uint32_t profile, isw_profile_fn visit, void* ctx);
    int (*profile_groups)(void* program, uint32_t profile, isw_profile_fn visit, void* ctx);
    // As table_insert, table_modify and table_set_default, for tables with an action profile: the entry
    // refers to a member or group in place of an action. The functions that take an action are -EINVAL for
    // such a table, except to restore the default that the program declares.
    int (*table_insert_indirect)(void* program, uint32_t table, const isw_match* match, int32_t priority,
                                 uint32_t kind, uint32_t id);
    int (*table_modify_indirect)(void* program, uint32_t table, const isw_match* match, int32_t priority,
                                 uint32_t kind, uint32_t id);
    int (*table_set_default_indirect)(void* program, uint32_t table, uint32_t kind, uint32_t id);

    // Replaces the members of a parser value set: `count` rows, each with one isw_match per field.
    int (*value_set_write)(void* program, uint32_t value_set, const isw_match* rows, size_t count);

    // Sets the number of queues of each port, 1 at first. Packets of a higher `priority` are dropped.
    void (*priority_queues)(void* program, uint32_t count);
} isw_api;

// Longest frame accepted, in bytes: the largest IP packet (65535) and its Ethernet header, rounded up.
#define ISW_MAX_FRAME 65600u

// The only symbol that a compiled program exports.
const isw_api* isw_program_v1(void);

#ifdef __cplusplus
}
#endif

#endif  // INAGG_SWITCH_PROGRAM_H
