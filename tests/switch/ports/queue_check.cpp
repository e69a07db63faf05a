// SPDX-License-Identifier: Apache-2.0
//
// Compares ports::OutputQueue with a queue that is too simple to be wrong, over random pushes and pops. Some
// packets can be coalesced, others cannot. The exit status is 0 if the queues agree.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "ports/offload/checksum.hpp"
#include "ports/offload/cut.hpp"
#include "ports/queue.hpp"

namespace {

using namespace inagg::ports;

constexpr size_t kFrames = 8;
constexpr size_t kBytes = 1000;
constexpr size_t kLongest = 400;
constexpr size_t kSharedBytes = 150;

[[noreturn]] void fail(const char* what, int step) {
    std::fprintf(stderr, "step %d: %s\n", step, what);
    std::exit(1);
}

// A datagram whose checksums are right.
std::string datagram(unsigned id, size_t payload_bytes, char fill) {
    std::string frame(42 + payload_bytes, fill);
    auto* bytes = reinterpret_cast<uint8_t*>(frame.data());
    std::fill(bytes, bytes + 42, uint8_t{0});
    store16(bytes + 12, 0x0800);
    bytes[14] = 0x45;
    bytes[23] = 17;
    store16(bytes + 18, id);
    const Headers headers = *find_headers(bytes, frame.size());
    set_network_length(bytes, headers, frame.size());
    store16(bytes + 38, 8 + payload_bytes);
    const uint64_t pseudo =
        pseudo_header_sum(bytes, headers) + htons(static_cast<uint16_t>(8 + payload_bytes));
    const uint16_t sum = checksum_of(pseudo + ones_sum(bytes + 34, 8 + payload_bytes));
    store_sum(bytes + 40, sum == 0 ? 0xFFFF : sum);
    return frame;
}

std::vector<std::string> packets_of(OutputQueue& queue) {
    std::vector<FramePieces> shown(kFrames + 1);
    shown.resize(queue.peek(shown.data(), shown.size()));
    std::vector<std::string> packets;
    for (const FramePieces& one : shown) {
        std::vector<uint8_t> frame;
        for (const iovec& piece : one) {
            const auto* bytes = static_cast<const uint8_t*>(piece.iov_base);
            frame.insert(frame.end(), bytes, bytes + piece.iov_len);
        }
        Offload offload;
        std::memcpy(&offload, frame.data(), sizeof offload);
        frame.erase(frame.begin(), frame.begin() + sizeof offload);
        Cutter cutter;
        if (cutter.start(offload, frame.data(), frame.size()) != Cutter::Result::kOk) return {};
        for (auto packet = cutter.next(); !packet.empty(); packet = cutter.next()) {
            cutter.fill();
            packets.emplace_back(packet.begin(), packet.end());
        }
    }
    return packets;
}

}  // namespace

int main() {
    std::mt19937 draw(1);
    SharedBytes shared(kSharedBytes);
    OutputQueue queue(kFrames, kBytes, true, shared);
    std::deque<std::string> expected;
    int refused = 0;
    int joined = 0;
    int shared_joined = 0;
    unsigned id = 0;
    for (int step = 0; step < 200000; ++step) {
        if (draw() % 2 == 0) {
            const auto fill = static_cast<char>(draw());
            if (draw() % 8 == 0) ++id;
            const std::string packet = draw() % 4 == 0 ? std::string(1 + draw() % kLongest, fill)
                                                       : datagram(id++, 20 + 20 * (draw() % 4 == 0), fill);
            size_t waiting = packet.size();
            for (const auto& other : expected) waiting += sizeof(Offload) + other.size();
            std::vector<FramePieces> before(kFrames);
            const size_t frames = queue.peek(before.data(), kFrames);
            const size_t pieces = frames == 0 ? 0 : before[frames - 1][1].iov_len;
            const auto* bytes = reinterpret_cast<const uint8_t*>(packet.data());
            std::span<const uint8_t> payload;
            if (draw() % 16 == 0) shared.add(bytes, 1);
            // Includes packets without headers, payloads with other copies between them, and full queues.
            if (packet.size() > 42 && draw() % 4 != 0) payload = shared.add(bytes + 42, packet.size() - 42);
            if (queue.push(bytes, packet.size(), kLongest, payload)) {
                expected.push_back(packet);
                if (queue.peek(before.data(), kFrames) == frames) {
                    ++joined;
                    if (before[frames - 1][1].iov_len > pieces) ++shared_joined;
                }
            } else {
                ++refused;
                // A frame that does not fit at the end of the block leaves a gap there; no other room may be
                // lost.
                if (frames < kFrames && waiting + 2 * kLongest <= kBytes) fail("refused with room", step);
            }
        } else if (!expected.empty()) {
            std::vector<FramePieces> shown(kFrames);
            const size_t count = 1 + draw() % queue.peek(shown.data(), kFrames);
            const OutputQueue::Amount popped = queue.pop(count);
            size_t bytes = 0;
            if (popped.packets < count || popped.packets > expected.size())
                fail("another number popped", step);
            for (size_t i = 0; i < popped.packets; ++i) {
                bytes += expected.front().size();
                expected.pop_front();
            }
            if (bytes != popped.bytes) fail("another number of bytes popped", step);
        }
        if (packets_of(queue) != std::vector<std::string>(expected.begin(), expected.end())) {
            fail("other packets", step);
        }
    }
    if (refused == 0 || joined == shared_joined || shared_joined == 0) {
        fail("never full, or never joined in one of the ways: the test is too kind", 0);
    }
    queue.clear();
    if (shared.add(reinterpret_cast<const uint8_t*>("x"), 1).empty()) fail("shared bytes never came back", 0);
    if (shared.add(std::vector<uint8_t>(kSharedBytes).data(), kSharedBytes).empty())
        fail("held by nobody", 0);
    return 0;
}
