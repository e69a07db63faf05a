// SPDX-License-Identifier: Apache-2.0
//
// A parser's value set: rows, written by the control plane, with one match for each field.
#ifndef INAGG_SWITCH_VALUE_SET_HPP
#define INAGG_SWITCH_VALUE_SET_HPP

#include <cerrno>
#include <cstdint>
#include <vector>

#include "tables/key.hpp"

namespace isw {

class ValueSet {
  public:
    ValueSet(std::uint32_t size, const FieldInfo* fields, std::uint32_t field_count)
        : size_(size), fields_(fields), field_count_(field_count) {}

    // True if a row matches the fields' values. `key` holds the values of all fields, one after the other.
    bool contains(const std::uint64_t* key) const {
        for (const Key& row : rows_) {
            if (matches(row, fields_, field_count_, key)) return true;
        }
        return false;
    }

    int write(const isw_match* rows, std::size_t count) {
        if (count > size_) return -ENOSPC;
        std::vector<Key> made(count);
        for (std::size_t i = 0; i < count; ++i) {
            const int error = decode_key(fields_, field_count_, rows + i * field_count_, made[i]);
            if (error != 0) return error;
        }
        rows_ = std::move(made);
        return 0;
    }

  private:
    std::uint32_t size_;
    const FieldInfo* fields_;
    std::uint32_t field_count_;
    std::vector<Key> rows_;
};

}  // namespace isw

#endif  // INAGG_SWITCH_VALUE_SET_HPP
