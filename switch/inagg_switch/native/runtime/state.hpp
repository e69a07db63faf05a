// SPDX-License-Identifier: Apache-2.0
//
// State that outlives a packet: registers, counters, multicast groups, clone sessions, random numbers.
//
// An index outside an array behaves as in BMv2 (targets/simple_switch/primitives.cpp), without its log
// message: a read leaves the destination as it was, writes and counts are ignored. Only the low 32 bits of an
// index that a packet gives are used.
#ifndef INAGG_SWITCH_STATE_HPP
#define INAGG_SWITCH_STATE_HPP

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>
#include <unordered_map>
#include <vector>

#include "program.h"
#include "values/bits.hpp"
#include "values/field.hpp"

namespace isw {

// Zeroed memory whose pages the kernel provides when they are first written.
class ZeroPages {
  public:
    explicit ZeroPages(std::size_t bytes) : bytes_(bytes == 0 ? 1 : bytes) {
        data_ =
            mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data_ == MAP_FAILED) throw std::bad_alloc();
        if (bytes_ >= std::size_t{1} << 21) madvise(data_, bytes_, MADV_HUGEPAGE);
    }
    ~ZeroPages() { munmap(data_, bytes_); }
    ZeroPages(const ZeroPages&) = delete;
    ZeroPages& operator=(const ZeroPages&) = delete;
    void* data() const { return data_; }

  private:
    void* data_;
    std::size_t bytes_;
};

// A register as the control plane reaches it: values as bytes, any width.
class RegisterBase {
  public:
    virtual ~RegisterBase() = default;
    virtual int control_read(std::uint64_t index, std::uint8_t* value) const = 0;
    virtual int control_write(std::uint64_t index, const std::uint8_t* value) = 0;
};

template <unsigned W>
class Register final : public RegisterBase {
  public:
    // `shared`: the register whose cells this one has, and which must live longer; NULL: it has cells of its
    // own.
    Register(std::uint64_t size, const Register* shared)
        : size_(size),
          memory_(shared == nullptr ? std::make_unique<ZeroPages>(size * sizeof(value_t<W>)) : nullptr),
          cells_(static_cast<value_t<W>*>(shared == nullptr ? memory_->data() : shared->cells_)) {}

    void read(value_t<W>& result, std::uint32_t index) const {
        if (index < size_) set<W>(result, cells_[index]);
    }
    // Zero outside the array.
    const value_t<W>& cell(std::uint32_t index) const {
        static constexpr value_t<W> zero{};
        return index < size_ ? cells_[index] : zero;
    }
    // NULL outside the array.
    const void* address(std::uint32_t index) const { return index < size_ ? cells_ + index : nullptr; }
    void write(std::uint32_t index, const value_t<W>& value) {
        if (index < size_) set<W>(cells_[index], value);
    }
    void write(std::uint32_t index, const WideField<W>& value)
        requires(wide_in_blocks<W>)
    {
        if (index < size_) wide_copy(cells_[index], value);
    }
    int control_read(std::uint64_t index, std::uint8_t* value) const override {
        if (index >= size_) return -ENOENT;
        store_value<W>(value, cells_[index]);
        return 0;
    }
    int control_write(std::uint64_t index, const std::uint8_t* value) override {
        if (index >= size_) return -ENOENT;
        if (W % 8 != 0 && (value[0] >> (W % 8)) != 0) return -EINVAL;
        cells_[index] = load_value<W>(value);
        return 0;
    }

  private:
    std::uint64_t size_;
    std::unique_ptr<ZeroPages> memory_;
    value_t<W>* cells_;
};

class Counter {
  public:
    Counter(std::uint64_t size, bool packets, bool bytes)
        : counts_packets_(packets), counts_bytes_(bytes), cells_(size) {}

    void count(std::uint32_t index, std::uint32_t length) {
        if (index >= cells_.size()) return;
        ++cells_[index].packets;
        cells_[index].bytes += length;
    }
    int read(std::uint64_t index, std::uint64_t* packets, std::uint64_t* bytes) const {
        if (index >= cells_.size()) return -ENOENT;
        *packets = counts_packets_ ? cells_[index].packets : 0;
        *bytes = counts_bytes_ ? cells_[index].bytes : 0;
        return 0;
    }
    int write(std::uint64_t index, std::uint64_t packets, std::uint64_t bytes) {
        if (index >= cells_.size()) return -ENOENT;
        cells_[index] = Cell{packets, bytes};
        return 0;
    }

  private:
    struct Cell {
        std::uint64_t packets = 0;
        std::uint64_t bytes = 0;
    };
    bool counts_packets_;
    bool counts_bytes_;
    std::vector<Cell> cells_;
};

// The replicas of each multicast group. Group 0 does not exist.
class MulticastGroups {
  public:
    int set(std::uint32_t group, const isw_replica* replicas, std::size_t count) {
        if (group == 0 || group > 0xFFFF) return -EINVAL;
        for (std::size_t i = 0; i < count; ++i) {
            if (replicas[i].port > 0x1FF || replicas[i].rid > 0xFFFF) return -EINVAL;
        }
        if (count == 0 && (group >= groups_.size() || groups_[group].empty())) return -ENOENT;
        if (group >= groups_.size()) groups_.resize(group + 1);
        groups_[group].assign(replicas, replicas + count);
        return 0;
    }
    const std::vector<isw_replica>& get(std::uint32_t group) const {
        static const std::vector<isw_replica> none;
        return group < groups_.size() ? groups_[group] : none;
    }

  private:
    std::vector<std::vector<isw_replica>> groups_;
};

// The replicas of each clone session, and the length that its clones are truncated to.
class CloneSessions {
  public:
    static constexpr std::uint32_t kMax = 32767;

    struct Session {
        std::vector<isw_replica> replicas;
        std::uint32_t max_length = 0;  // bytes; 0: whole packets
    };

    int set(std::uint32_t session, const isw_replica* replicas, std::size_t count, std::uint32_t max_length) {
        if (session > kMax) return -EINVAL;
        for (std::size_t i = 0; i < count; ++i) {
            if (replicas[i].port > 0x1FF || replicas[i].rid > 0xFFFF) return -EINVAL;
        }
        if (count == 0) return sessions_.erase(session) != 0 ? 0 : -ENOENT;
        Session& to = sessions_[session];
        to.replicas.assign(replicas, replicas + count);
        to.max_length = max_length;
        return 0;
    }
    // NULL if the session does not exist.
    const Session* get(std::uint32_t session) const {
        const auto found = sessions_.find(session);
        return found == sessions_.end() ? nullptr : &found->second;
    }

  private:
    std::unordered_map<std::uint32_t, Session> sessions_;
};

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014, figure 16).
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next() {
        std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
    // Uniform on low..high, both inclusive; low <= high (Lemire: Fast Random Integer Generation in an
    // Interval, 2019).
    std::uint64_t between(std::uint64_t low, std::uint64_t high) {
        const std::uint64_t span = high - low + 1;
        if (span == 0) return next();
        uint128 product = static_cast<uint128>(next()) * span;
        if (static_cast<std::uint64_t>(product) < span) {
            const std::uint64_t threshold = (0 - span) % span;
            while (static_cast<std::uint64_t>(product) < threshold) {
                product = static_cast<uint128>(next()) * span;
            }
        }
        return low + static_cast<std::uint64_t>(product >> 64);
    }

  private:
    std::uint64_t state_;
};

}  // namespace isw

#endif  // INAGG_SWITCH_STATE_HPP
