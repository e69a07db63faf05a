// SPDX-License-Identifier: Apache-2.0
#include "server/served_job.hpp"

#include <algorithm>
#include <string>

#include "numerics/numerics.hpp"
#include "wire/require.hpp"

namespace inagg {
namespace {

constexpr unsigned MAX_MEMBERS = 64;  // bits of a version
constexpr std::uint32_t MAX_SLOTS = 1U << 16;
// What a version takes besides its packet, as the controller counts it.
constexpr std::size_t VERSION_BYTES = 64;

std::uint64_t all_bits(unsigned workers) { return ~std::uint64_t{0} >> (MAX_MEMBERS - workers); }

void maximise(Announcement& sum, const Announcement& added) {
    sum.flags |= added.flags;
    sum.flags_check |= added.flags_check;
    sum.exponent = std::max(sum.exponent, added.exponent);
    sum.exponent_check = std::max(sum.exponent_check, added.exponent_check);
}

}  // namespace

void ServedJobConfig::validate() const {
    job.validate(MAX_SLOTS);
    require(1 <= job.workers && job.workers <= MAX_MEMBERS, "workers is " + std::to_string(job.workers) +
                                                                "; a server sums for 1 to " +
                                                                std::to_string(MAX_MEMBERS));
    require(1 <= servers && servers <= job.slots, "servers is " + std::to_string(servers) +
                                                      "; a job has at most one for each of its slots, " +
                                                      std::to_string(job.slots));
    require(index < servers,
            "index is " + std::to_string(index) + " of " + std::to_string(servers) + " servers");
    require(!home || (relayed && *home < job.workers), "home is a worker of a relayed job");
    require(!relayed || all_members() == all_bits(job.workers), "all workers are members of a relayed job");
    require((members & ~all_bits(job.workers)) == 0, "members has bits of ranks that the job does not have");
    require(!rank_above || (!relayed && *rank_above < job.workers),
            "rank_above is a rank of a job that is not relayed");
}

std::uint64_t ServedJobConfig::all_members() const { return members == 0 ? all_bits(job.workers) : members; }

std::size_t ServedJobConfig::memory() const {
    return 2 * ways().most_slots() * (datagram_bytes(Kind::data, job.words) + VERSION_BYTES);
}

ServedJob::ServedJob(const ServedJobConfig& config)
    : config_((config.validate(), config)),
      ways_(config.ways()),
      share_(ways_.most_slots()),
      stride_(datagram_bytes(Kind::data, config.job.words)),
      all_(config.all_members()),
      away_(config.home ? all_ & ~(std::uint64_t{1} << *config.home) : all_),
      versions_(2 * share_),
      memory_(2 * share_ * stride_) {
    static_assert(sizeof(Version) <= VERSION_BYTES);
}

void ServedJob::receive(std::span<const std::byte> datagram, unsigned member, bool congested) {
    const std::optional<Header> header = read(datagram, 0);
    if (!header) {
        count(Outcome::malformed);
    } else if ((config_.relayed && config_.home != member) || header->rank != member ||
               member >= config_.job.workers || (all_ >> member & 1) == 0) {
        count(Outcome::not_admitted);
    } else {
        count(take({.header = *header,
                    .congested = congested,
                    .members = std::uint64_t{1} << member,
                    .words = datagram.subspan(HEADER_BYTES)}));
    }
}

void ServedJob::receive_from_above(std::span<const std::byte> datagram, bool congested) {
    const std::optional<Header> header = read(datagram, 0);
    if (!header) {
        count(Outcome::malformed);
    } else if (!config_.rank_above || !is_result(header->kind)) {
        count(Outcome::not_admitted);
    } else {
        count(take_from_above(datagram, *header, congested));
    }
}

void ServedJob::receive_relayed(std::span<const std::byte> datagram, bool congested) {
    constexpr std::size_t bitmap = p4::MEMBERS_BYTES;
    const std::optional<Header> header = decode(datagram);
    const bool query = header && is_query(header->kind);
    const std::size_t extra = query ? 2 * bitmap : bitmap;
    if (!header || !read(datagram, extra)) {
        count(Outcome::malformed);
        return;
    }
    Packet packet{.header = *header,
                  .congested = congested,
                  .members = decode_bitmap(datagram.subspan(HEADER_BYTES)),
                  .words = datagram.subspan(HEADER_BYTES + extra)};
    if (query) {
        packet.waits_with = decode_bitmap(datagram.subspan(HEADER_BYTES + bitmap));
    }
    const std::uint64_t stated = packet.members | packet.waits_with;
    const bool known = packet.members != 0 && (stated & ~all_) == 0;
    if (!config_.relayed || !known || (query && !std::has_single_bit(packet.members))) {
        count(Outcome::not_admitted);
    } else {
        count(take(packet));
    }
}

const ServedJob::Version& ServedJob::version(std::uint32_t chunk) const {
    require(is_own(chunk), "chunk " + std::to_string(chunk) + " belongs to another server");
    return versions_[place_of(chunk)];
}

std::span<const std::byte> ServedJob::words(std::uint32_t chunk) const {
    const bool has_words = version(chunk).has_words;
    const auto datagram = std::span(memory_).subspan(place_of(chunk) * stride_, stride_);
    return has_words ? datagram.subspan(HEADER_BYTES) : std::span<const std::byte>{};
}

void ServedJob::clear_replies() {
    replies_.clear();
    apart_.clear();
}

// The header of a well-formed datagram that has so many bytes more than a worker's.
std::optional<Header> ServedJob::read(std::span<const std::byte> datagram, std::size_t extra) const {
    const std::optional<Header> header = decode(datagram);
    if (!header || datagram.size() != datagram_bytes(header->kind, config_.job.words) + extra ||
        !header->announced.agrees() || header->announced.exponent > p4::MAX_EXPONENT) {
        return std::nullopt;
    }
    return header;
}

Outcome ServedJob::take(const Packet& packet) {
    const Header& header = packet.header;
    if (header.job != config_.job.number || is_result(header.kind) || !is_own(header.chunk)) {
        return Outcome::not_admitted;
    }
    if (header.epoch != config_.job.epoch) {
        return Outcome::wrong_epoch;
    }
    const std::size_t place = place_of(header.chunk);
    return is_query(header.kind) ? answer(packet, versions_[place]) : contribute(packet, place);
}

// Versions of one parity are neighbours in the order of their slots.
std::size_t ServedJob::place_of(std::uint32_t chunk) const {
    const std::size_t slot = ways_.place_of(chunk);
    return (chunk & config_.job.slots) == 0 ? slot : share_ + slot;
}

Outcome ServedJob::contribute(const Packet& packet, std::size_t place) {
    const Header& header = packet.header;
    Version& version = versions_[place];
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
    } else if (version.final) {
        resend(place, packet);
        return Outcome::result_resent;
    } else if (is_partial(version) && asks_above(packet.members)) {
        send_above(place, header);
        return Outcome::partial_resent;
    } else if ((version.members & packet.members) != 0) {
        // Those of the packet that are missing send theirs again when they ask.
        const bool news = (packet.members & ~version.members) != 0;
        return news ? Outcome::overlapping : Outcome::duplicate_pending;
    }
    const bool starts = version.members == 0;
    version.members |= packet.members;
    const bool several = !std::has_single_bit(packet.members);
    version.combined |= several;
    version.whole |= several && (packet.members & away_) == away_;
    if (packet.congested) {
        note_congestion(version);
    }
    add(version, header, packet.words, datagram_at(place).subspan(HEADER_BYTES));
    if (version.members == all_) {
        complete(place, packet);
    }
    return starts ? Outcome::started : Outcome::added;
}

void ServedJob::note_congestion(Version& version) {
    version.announced.flags |= p4::FLAG_CONGESTED;
    version.announced.flags_check |= p4::FLAG_CONGESTED;
}

// `packet`: the last one.
void ServedJob::complete(std::size_t place, const Packet& packet) {
    Version& version = versions_[place];
    if (config_.rank_above) {
        send_above(place, packet.header);
        count(Outcome::partial_sent);
        return;
    }
    version.final = true;
    send_to_all(place, packet.header);
    count(Outcome::completed);
    if (version.has_words) {
        const SummedIn summed = !version.combined ? SummedIn::servers
                                : version.whole   ? SummedIn::switches
                                                  : SummedIn::both;
        ++chunks_[static_cast<std::size_t>(summed)];
    }
}

// A copy: the result that has gone to all stays as it is.
void ServedJob::resend(std::size_t place, const Packet& packet) {
    const Version& version = versions_[place];
    const Kind kind = result_of(packet.header.kind);
    std::vector<std::byte>& copy = apart_.emplace_back(datagram_bytes(kind, config_.job.words));
    if (version.has_words) {
        std::ranges::copy(datagram_at(place).first(copy.size()), copy.begin());
    }
    write_header(version, kind, rank_in_result(packet.header), copy);
    for (unsigned worker = 0; worker < config_.job.workers; ++worker) {
        if ((packet.members >> worker & 1) != 0) {
            replies_.push_back({.datagram = copy, .destination = worker});
        }
    }
}

// A way begins with its first S chunks. Chunk c overwrites c - 2S. If c - S is final, all workers have sent
// it, so all have the result of c - 2S.
bool ServedJob::may_start(const Version& version, std::uint32_t chunk) const {
    if (version.members == 0 && chunk - config_.job.first_chunk < config_.job.slots) {
        return true;
    }
    const Version& other = versions_[place_of(chunk - config_.job.slots)];
    return other.final && other.chunk == chunk - config_.job.slots;
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

// Held: the contribution is here, or in a slot of the switch that can still be completed, because nobody's
// has come past it.
Outcome ServedJob::answer(const Packet& query, const Version& version) {
    const Header& header = query.header;
    const std::int32_t age = chunk_age(header.chunk, version.chunk);
    const bool used = version.members != 0;
    if (used && age < 0) {
        return Outcome::stale;
    }
    const bool same = used && age == 0;
    const bool here = same && (version.members & query.members) != 0;
    const bool waits = query.waits_with != 0 && (!same || (version.members & query.waits_with) == 0);
    if (here && is_partial(version) && asks_above(query.members)) {
        Header up = header;
        up.rank = rank_above();
        pass_on(up, ABOVE);
        return Outcome::query_passed;
    }
    const bool held = !(same && version.final) && (here || waits);
    Header out = header;
    out.kind = result_of(header.kind);
    out.announced = Announcement::of(held ? 0 : p4::FLAG_AGAIN, 0);
    pass_on(out, static_cast<unsigned>(std::countr_zero(query.members)));
    return held ? Outcome::query_held : Outcome::query_again;
}

// A packet without words.
void ServedJob::pass_on(Header header, unsigned destination) {
    std::vector<std::byte>& datagram = apart_.emplace_back(HEADER_BYTES);
    encode(header, std::span(datagram).first<HEADER_BYTES>());
    replies_.push_back({.datagram = datagram, .destination = destination});
}

Outcome ServedJob::take_from_above(std::span<const std::byte> datagram, const Header& header,
                                   bool congested) {
    if (header.job != config_.job.number || !is_own(header.chunk)) {
        return Outcome::not_admitted;
    }
    if (header.epoch != config_.job.epoch) {
        return Outcome::wrong_epoch;
    }
    const std::size_t place = place_of(header.chunk);
    Version& version = versions_[place];
    const std::int32_t age = chunk_age(header.chunk, version.chunk);
    if (version.members != 0 && age < 0) {
        return Outcome::stale;
    }
    if (version.members != all_ || age > 0) {
        return Outcome::result_unexpected;
    }
    if (version.final) {
        return Outcome::result_duplicate;
    }
    if (is_query(header.kind)) {
        pass_on(header, static_cast<unsigned>(std::countr_zero(all_)));
        return Outcome::answer_passed;
    }
    keep(place, header, datagram.subspan(HEADER_BYTES));
    if (congested) {
        note_congestion(version);
    }
    send_to_all(place, header);
    return Outcome::result_kept;
}

void ServedJob::keep(std::size_t place, const Header& result, std::span<const std::byte> words) {
    Version& version = versions_[place];
    version.announced = result.announced;
    version.checksum = result.checksum;
    version.final = true;
    if (!words.empty()) {
        std::ranges::copy(words, datagram_at(place).subspan(HEADER_BYTES).begin());
        version.has_words = true;
    }
}

// `answered`: of the packet because of which it leaves. A result says in its rank whose server it comes from:
// the switch sends that rank no copy.
void ServedJob::send_to_all(std::size_t place, const Header& answered) {
    const Kind kind = result_of(answered.kind);
    replies_.push_back({.datagram = in_place(place, kind, rank_in_result(answered)), .destination = ALL});
}

void ServedJob::send_above(std::size_t place, const Header& answered) {
    const auto datagram = in_place(place, answered.kind, rank_above());
    replies_.push_back({.datagram = datagram, .destination = ABOVE});
}

// The datagram of a version, as a packet of this kind.
std::span<const std::byte> ServedJob::in_place(std::size_t place, Kind kind, std::uint8_t rank) {
    const Version& version = versions_[place];
    const auto datagram = datagram_at(place).first(datagram_bytes(kind, config_.job.words));
    if (!version.has_words) {  // the memory may still have those of another chunk
        std::ranges::fill(datagram.subspan(HEADER_BYTES), std::byte{0});
    }
    write_header(version, kind, rank, datagram);
    return datagram;
}

void ServedJob::write_header(const Version& version, Kind kind, std::uint8_t rank,
                             std::span<std::byte> out) const {
    encode({.kind = kind,
            .rank = rank,
            .job = config_.job.number,
            .announced = version.announced,
            .epoch = config_.job.epoch,
            .chunk = version.chunk,
            .checksum = version.checksum},
           out.first<HEADER_BYTES>());
}

}  // namespace inagg
