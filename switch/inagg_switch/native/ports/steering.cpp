// SPDX-License-Identifier: Apache-2.0
#include "ports/steering.hpp"

#include <algorithm>
#include <span>
#include <utility>

namespace inagg::ports {
namespace {

// A jump in a filter passes 255 instructions at most, and a condition takes three. A frame that meets these
// conditions but not the rest is steered too.
constexpr size_t kMostConditions = 64;

std::span<const isw_condition> conditions(const isw_steering& steering) {
    return {steering.conditions, std::min(steering.condition_count, kMostConditions)};
}

// The length of the shortest frame that has the number and all conditions.
uint32_t shortest(const isw_steering& steering) {
    uint32_t length = steering.offset + steering.bytes;
    for (const isw_condition& one : conditions(steering)) length = std::max(length, one.offset + 1);
    return length;
}

// Writes a filter: code that returns how many bytes of a frame to accept, or 0.
class Writer {
  public:
    void add(uint32_t code, uint32_t k) { code_.push_back({static_cast<uint16_t>(code), 0, 0, k}); }
    // Goes on if the accumulator compares with k; else to miss().
    void expect(uint32_t comparison, uint32_t k) {
        add(BPF_JMP | comparison | BPF_K, k);
        missing_.push_back(code_.size() - 1);
    }
    // The place to which expect() goes.
    void miss() {
        for (const size_t at : missing_) code_[at].jf = static_cast<uint8_t>(code_.size() - at - 1);
        missing_.clear();
    }
    void accept(bool accepted) { add(BPF_RET | BPF_K, accepted ? ~0U : 0U); }
    std::vector<sock_filter> take() { return std::move(code_); }

  private:
    std::vector<sock_filter> code_;
    std::vector<size_t> missing_;
};

uint32_t load_of(uint32_t bytes) {
    if (bytes == 1) return BPF_LD | BPF_B | BPF_ABS;
    return BPF_LD | BPF_ABS | (bytes == 2 ? BPF_H : BPF_W);
}

}  // namespace

uint32_t thread_of(const isw_steering* steering, uint32_t threads, const uint8_t* frame, size_t length) {
    if (steering == nullptr || length < shortest(*steering)) return 0;
    for (const isw_condition& one : conditions(*steering)) {
        if ((frame[one.offset] & one.mask) != one.value) return 0;
    }
    uint32_t number = 0;
    for (uint32_t i = 0; i < steering->bytes; ++i) number = number << 8 | frame[steering->offset + i];
    return (number >> steering->shift) % threads;
}

std::vector<sock_filter> filter_of(const isw_steering* steering, uint32_t threads, uint32_t thread) {
    Writer code;
    if (steering == nullptr || thread >= threads) {
        code.accept(thread == 0);
        return code.take();
    }
    // A load beyond the frame would end the filter, and no thread would have the frame.
    code.add(BPF_LD | BPF_W | BPF_LEN, 0);
    code.expect(BPF_JGE, shortest(*steering));
    for (const isw_condition& one : conditions(*steering)) {
        code.add(BPF_LD | BPF_B | BPF_ABS, one.offset);
        if (one.mask != 0xFF) code.add(BPF_ALU | BPF_AND | BPF_K, one.mask);
        code.expect(BPF_JEQ, one.value);
    }
    code.add(load_of(steering->bytes), steering->offset);
    code.add(BPF_ALU | BPF_RSH | BPF_K, steering->shift);
    code.add(BPF_ALU | BPF_MOD | BPF_K, threads);
    if (thread == 0) {
        code.expect(BPF_JGE, 1);  // 0: its share; and a frame without the number comes here too
        code.accept(false);
        code.miss();
        code.accept(true);
    } else {
        code.expect(BPF_JEQ, thread);
        code.accept(true);
        code.miss();
        code.accept(false);
    }
    return code.take();
}

}  // namespace inagg::ports
