// SPDX-License-Identifier: Apache-2.0
//
// The control side of a program, for Python. A call holds the program's lock only while the program works,
// because the packet loop waits for the lock. Python code never runs with the lock held.
#ifndef INAGG_SWITCH_PORTS_CONTROL_HPP
#define INAGG_SWITCH_PORTS_CONTROL_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/program.h"

namespace inagg::ports {

struct Match {
    std::optional<std::string> value;         // big-endian; nullopt: don't care
    std::optional<std::string> mask_or_high;  // ternary and range
    uint32_t prefix_length = 0;               // lpm
};

struct Entry {
    std::vector<Match> match;
    int32_t priority = 0;
    uint32_t action = 0;
    std::string params;
    uint64_t packets = 0;
    uint64_t bytes = 0;
    bool is_const = false;
    uint32_t indirect_kind = 0;  // isw_entry's
    uint32_t indirect_id = 0;
    uint64_t last_hit_us = 0;
    isw_meter meter{};
};

struct Count {
    uint64_t packets = 0;
    uint64_t bytes = 0;
};

// Entries that are read or written in one locked section, about 50 us of work, during which packets wait.
inline constexpr size_t kEntriesAtATime = 64;
// Cells of an array that are read in one locked section.
inline constexpr size_t kCellsAtATime = 512;

// Holds a program's mutex.
class ProgramLock {
  public:
    ProgramLock(const isw_api* api, void* handle) : api_(api), handle_(handle) { api_->lock(handle_); }
    ~ProgramLock() { api_->unlock(handle_); }
    ProgramLock(const ProgramLock&) = delete;
    ProgramLock& operator=(const ProgramLock&) = delete;

  private:
    const isw_api* api_;
    void* handle_;
};

// Functions return 0 or -errno, as in program.h.
class Control {
  public:
    Control(const isw_api* api, void* handle) : api_(api), handle_(handle) {}

    int table_insert(uint32_t table, const std::vector<Match>& match, int32_t priority, uint32_t action,
                     const std::string& params);
    int table_modify(uint32_t table, const std::vector<Match>& match, int32_t priority, uint32_t action,
                     const std::string& params);
    int table_delete(uint32_t table, const std::vector<Match>& match, int32_t priority);
    int table_set_default(uint32_t table, uint32_t action, const std::string& params);

    // `field_bytes`: the size of each match field's value. The program is locked for a few entries at a time,
    // so the caller must make sure that nobody writes entries during the call.
    int table_entries(uint32_t table, const std::vector<size_t>& field_bytes, std::vector<Entry>& entries);
    // Returns the number of entries.
    int table_count(uint32_t table, uint64_t& count);
    // Reads one entry. Returns -ENOENT if it does not exist.
    int table_entry(uint32_t table, const std::vector<Match>& match, int32_t priority,
                    std::vector<Entry>& entries);
    int table_default(uint32_t table, std::vector<Entry>& entries);

    int multicast_set(uint32_t group, const std::vector<std::pair<uint32_t, uint32_t>>& replicas);

    // Reads indices first to first + count - 1, with the program locked for a few at a time.
    int counter_write(uint32_t counter, uint64_t first, uint64_t count, Count value);
    int direct_counter_read(uint32_t table, const std::vector<Match>& match, int32_t priority, Count& value);
    int direct_counter_write(uint32_t table, const std::vector<Match>& match, int32_t priority, Count value);
    int register_write(uint32_t reg, uint64_t first, uint64_t count, const std::string& value);

    int meter_write(uint32_t meter, uint64_t first, uint64_t count, const isw_meter& config);

    const isw_api* api() const { return api_; }
    void* handle() const { return handle_; }

  private:
    template <class Write>
    int each_cell(uint64_t first, uint64_t count, Write write);

    const isw_api* api_;
    void* handle_;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_CONTROL_HPP
