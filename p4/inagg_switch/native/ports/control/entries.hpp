// SPDX-License-Identifier: Apache-2.0
//
// Table entries as P4Runtime's messages have them, written to and read from a program by the thousand. Only
// what is plain is dealt with here (a match, a priority and an action that the table takes); whatever else a
// message holds, and every error, is left to p4runtime/write.py and read.py, which say what is
// right.
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

// As p4runtime_names.Field: bits in the program, and those that a controller may use of them.
struct FieldShape {
    uint32_t id;
    uint32_t bits;
    uint32_t given_bits;
    MatchKind kind;
};

struct ActionShape {
    uint32_t id;
    bool in_entries;  // not the default action's alone
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

// A WriteRequest, its updates apart.
class Updates {
  public:
    // is_sound() is false for a message that protobuf has to look at as a whole, and for one with more than
    // `most` updates.
    Updates(std::string request, size_t most);

    bool is_sound() const { return is_sound_; }
    bool has_too_many() const { return has_too_many_; }
    // The request without its updates.
    const std::string& rest() const { return rest_; }
    size_t size() const { return updates_.size(); }
    std::string_view message(size_t place) const;
    // Whether the update could be written from here.
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

    // A table whose entries are plain: with actions, and nothing that is kept elsewhere.
    void add_table(TableShape table) { tables_.push_back(std::move(table)); }

    // Writes the updates from `first` on, up to one that is not plain, is refused, or is not an INSERT where
    // only these are wanted. The place of that one.
    size_t write(const Updates& updates, size_t first, bool only_inserts);
    // Takes back INSERTs, the last one first. The number of those that are gone.
    size_t take_back(const Updates& updates, size_t first, size_t end);
    // ReadResponses with all entries of a table. The program is locked for a few at a time: nobody else may
    // write.
    int read(uint32_t table, bool with_counters, std::vector<std::string>& responses);

  private:
    const TableShape* find(uint32_t table) const;

    const isw_api* api_;
    void* handle_;
    std::vector<TableShape> tables_;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_ENTRIES_HPP
