// SPDX-License-Identifier: Apache-2.0
#ifndef INAGG_SPECIAL_CLASSES_HPP
#define INAGG_SPECIAL_CLASSES_HPP

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "numerics/numerics.hpp"

namespace inagg {

// The classes (numerics.hpp) of the elements of one collective's blocks that are special on this rank.
// Results overwrite the elements, so their classes are kept here.
class SpecialClasses {
  public:
    void remember(std::size_t block, std::span<const float> elements) {
        std::vector<std::uint8_t>& classes = classes_[block];
        classes.resize(elements.size());
        classify(elements, classes);
    }

    // Empty if the block is not special on this rank.
    std::span<const std::uint8_t> of(std::size_t block) const {
        const auto found = classes_.find(block);
        return found == classes_.end() ? std::span<const std::uint8_t>{} : found->second;
    }

    bool contains(std::size_t block) const { return classes_.contains(block); }

  private:
    std::map<std::size_t, std::vector<std::uint8_t>> classes_;
};

}  // namespace inagg

#endif
