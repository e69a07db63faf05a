// SPDX-License-Identifier: Apache-2.0
#include "server/served_job.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "numerics/numerics.hpp"
#include "wire/require.hpp"

namespace inagg {
namespace {

constexpr unsigned MAX_MEMBERS = 64;  // bits of a version
constexpr std::uint32_t MAX_SLOTS = 1U << 16;
// What a version takes besides its packet, as the controller counts it.
constexpr std::size_t VERSION_BYTES = 64;

std::size_t share_of(const ServedJobConfig& config) {
    return (config.slots - config.index + config.servers - 1) / config.servers;
}

void maximise(Announcement& sum, const Announcement& added) {
    sum.flags |= added.flags;
    sum.flags_check |= added.flags_check;
    sum.exponent = std::max(sum.exponent, added.exponent);
    sum.exponent_check = std::max(sum.exponent_check, added.exponent_check);
}

}  // namespace

void ServedJobConfig::validate() const {
    require(job >= 1, "job is 0; jobs are 1 to 65535");
    require(epoch != 0, "epoch is 0, which no job has");
    require(std::has_single_bit(slots) && slots <= MAX_SLOTS, "slots is " + std::to_string(slots) +
                                                                  "; it must be a power of two, at most " +
                                                                  std::to_string(MAX_SLOTS));
    require_words(words);
    require(
        1 <= workers && workers <= MAX_MEMBERS,
        "workers is " + std::to_string(workers) + "; a server sums for 1 to " + std::to_string(MAX_MEMBERS));
    require(1 <= servers && servers <= slots, "servers is " + std::to_string(servers) +
                                                  "; a job has at most one for each of its slots, " +
                                                  std::to_string(slots));
    require(index < servers,
            "index is " + std::to_string(index) + " of " + std::to_string(servers) + " servers");
}

std::size_t ServedJobConfig::memory() const {
    return 2 * ((slots + servers - 1) / servers) * (datagram_bytes(Kind::data, words) + VERSION_BYTES);
}

ServedJob::ServedJob(const ServedJobConfig& config)
    : config_((config.validate(), config)),
      share_(share_of(config)),
      stride_(datagram_bytes(Kind::data, config.words)),
      all_(~std::uint64_t{0} >> (MAX_MEMBERS - config.workers)),
      versions_(2 * share_),
      memory_(2 * share_ * stride_) {
    static_assert(sizeof(Version) <= VERSION_BYTES);
    for (std::uint32_t age = 1; config.first_chunk != 0 && age <= 2 * config.slots; ++age) {
        const std::uint32_t chunk = config.first_chunk - age;
        if (is_own(chunk)) {
            versions_[place_of(chunk)] =
                Version{.members = all_, .chunk = chunk, .announced = {.exponent_check = 0}, .final = true};
        }
    }
}

void ServedJob::receive(std::span<const std::byte> datagram, unsigned worker) {
    count(take(datagram, worker));
}

void ServedJob::clear_replies() {
    replies_.clear();
    answers_.clear();
}

Outcome ServedJob::take(std::span<const std::byte> datagram, unsigned worker) {
    const std::optional<Header> header = decode(datagram);
    if (!header || datagram.size() != datagram_bytes(header->kind, config_.words) ||
        !header->announced.agrees() || header->announced.exponent > p4::MAX_EXPONENT) {
        return Outcome::malformed;
    }
    if (header->job != config_.job || header->rank != worker || worker >= config_.workers ||
        is_result(header->kind) || !is_own(header->chunk)) {
        return Outcome::not_admitted;
    }
    if (header->epoch != config_.epoch) {
        return Outcome::wrong_epoch;
    }
    const std::size_t place = place_of(header->chunk);
    if (is_query(header->kind)) {
        return answer(*header, versions_[place]);
    }
    return contribute(*header, datagram.subspan(HEADER_BYTES), place);
}

// Versions of one parity are neighbours in the order of their slots.
std::size_t ServedJob::place_of(std::uint32_t chunk) const {
    const std::size_t slot = (chunk & (config_.slots - 1)) / config_.servers;
    return (chunk & config_.slots) == 0 ? slot : share_ + slot;
}

Outcome ServedJob::contribute(const Header& header, std::span<const std::byte> words, std::size_t place) {
    Version& version = versions_[place];
    const std::uint64_t member = std::uint64_t{1} << header.rank;
    const std::int32_t age = chunk_age(header.chunk, version.chunk);
    const bool used = version.members != 0;
    if (used && age < 0) {
        return Outcome::stale;
    }
    if (!used || age > 0) {
        if (!may_start(version, header.chunk)) {
            return Outcome::ahead;
        }
        version = Version{};
        version.chunk = header.chunk;
    } else if ((version.members & member) != 0) {
        if (!version.final) {
            return Outcome::duplicate_pending;
        }
        reply(place, header.kind, header.rank, header.rank);
        return Outcome::result_resent;
    }
    const bool starts = version.members == 0;
    version.members |= member;
    add(version, header, words, datagram_at(place).subspan(HEADER_BYTES));
    if (version.members == all_) {
        version.final = true;
        reply(place, header.kind, header.rank, ALL);
        count(Outcome::completed);
    }
    return starts ? Outcome::started : Outcome::added;
}

// Jobs begin with the chunks 0 to S - 1. Chunk c overwrites c - 2S. If c - S is final, all workers have sent
// it, so all have the result of c - 2S.
bool ServedJob::may_start(const Version& version, std::uint32_t chunk) const {
    if (version.members == 0 && chunk < config_.slots) {
        return true;
    }
    const Version& other = versions_[place_of(chunk - config_.slots)];
    return other.final && other.chunk == chunk - config_.slots;
}

void ServedJob::add(Version& version, const Header& header, std::span<const std::byte> words,
                    std::span<std::byte> sums) {
    version.checksum += header.checksum;
    maximise(version.announced, header.announced);
    if (words.empty()) {
        return;
    }
    if (version.has_words) {
        add_words(words, sums);
    } else {
        std::ranges::copy(words, sums.begin());
    }
    version.has_words = true;
}

Outcome ServedJob::answer(const Header& header, const Version& version) {
    const std::uint64_t member = std::uint64_t{1} << header.rank;
    const std::int32_t age = chunk_age(header.chunk, version.chunk);
    if (version.members != 0 && age < 0) {
        return Outcome::stale;
    }
    const bool held = version.members != 0 && age == 0 && (version.members & member) != 0 && !version.final;
    Header out = header;
    out.kind = result_of(header.kind);
    out.announced = Announcement::of(held ? 0 : p4::FLAG_AGAIN, 0);
    encode(out, answers_.emplace_back());
    replies_.push_back({.datagram = answers_.back(), .destination = header.rank});
    return held ? Outcome::query_held : Outcome::query_again;
}

void ServedJob::reply(std::size_t place, Kind kind, unsigned rank, unsigned destination) {
    const Version& version = versions_[place];
    const Kind result = result_of(kind);
    const auto datagram = datagram_at(place).first(datagram_bytes(result, config_.words));
    encode({.kind = result,
            .rank = static_cast<std::uint8_t>(rank),
            .job = config_.job,
            .announced = version.announced,
            .epoch = config_.epoch,
            .chunk = version.chunk,
            .checksum = version.checksum},
           datagram.first<HEADER_BYTES>());
    replies_.push_back({.datagram = datagram, .destination = destination});
}

}  // namespace inagg
