// SPDX-License-Identifier: Apache-2.0
//
// Writes P4Runtime's encoded table entries to a program, and reads them, thousands at a time. It handles only
// plain entries: a match, a priority and an action that the table accepts. p4runtime/write.py and read.py
// handle all others, and every error.
#ifndef INAGG_SWITCH_PORTS_ENTRIES_HPP
#define INAGG_SWITCH_PORTS_ENTRIES_HPP

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ports/control/update.hpp"
#include "runtime/program.h"

namespace inagg::ports {

// As p4runtime.entities.names.Field: the field's bits in the program, and the bits that a controller may use.
struct FieldShape {
    uint32_t id;
    uint32_t bits;
    uint32_t given_bits;
    MatchKind kind;
};

struct ActionShape {
    uint32_t id;
    bool in_entries;  // the action may be used in entries, not only as the default
    std::vector<FieldShape> params;
};

struct TableShape {
    uint32_t id;
    bool is_writable;
    bool needs_priority;
    bool is_counted;
    std::vector<FieldShape> fields;
    std::vector<ActionShape> actions;
};

// A WriteRequest, split into its updates.
class Updates {
  public:
    // After this, is_sound() is false if the message has more than `most` updates or needs protobuf's parser.
    Updates(std::string request, size_t most);

    bool is_sound() const { return is_sound_; }
    bool has_too_many() const { return has_too_many_; }
    // The request without its updates.
    const std::string& rest() const { return rest_; }
    size_t size() const { return updates_.size(); }
    std::string_view message(size_t place) const;
    // Whether the update has the form of a plain entry.
    bool is_plain(size_t place) const { return updates_[place].is_plain; }

  private:
    struct Part {
        size_t start;
        size_t length;
        bool is_plain;
    };

    std::string request_;
    std::string rest_;
    std::vector<Part> updates_;
    bool is_sound_ = false;
    bool has_too_many_ = false;
};

class Entries {
  public:
    Entries(const isw_api* api, void* handle) : api_(api), handle_(handle) {}

    // Registers a table whose entries are plain: with actions, and no action profile or other state
    // elsewhere.
    void add_table(TableShape table) { tables_.push_back(std::move(table)); }

    // Writes the updates from index `first` on. Stops at the first one that is not plain, is refused, or,
    // with inserts only, is not an INSERT; returns its index.
    size_t write(const Updates& updates, size_t first, bool only_inserts);
    // Removes inserted entries, the last one first. Returns the number of removed entries.
    size_t take_back(const Updates& updates, size_t first, size_t end);
    // Encodes ReadResponses with all entries of a table. The program is locked for a few entries at a time,
    // so the caller must make sure that nobody writes during the call.
    int read(uint32_t table, bool with_counters, std::vector<std::string>& responses);

  private:
    const TableShape* find(uint32_t table) const;

    const isw_api* api_;
    void* handle_;
    std::vector<TableShape> tables_;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_ENTRIES_HPP
