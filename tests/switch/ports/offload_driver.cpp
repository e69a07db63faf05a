// SPDX-License-Identifier: Apache-2.0
//
// Cuts and coalesces frames for test_segments.py. Requests come on stdin, answers go to stdout; numbers
// are 32-bit, in this machine's byte order, and bytes follow their number.
//   'c' offload frame                    -> result, count, packets: ports::Cutter
//   'q' room frames limit count packets  -> taken, count, frames with Offloads: ports::OutputQueue
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ports/offload/cut.hpp"
#include "ports/queue.hpp"

namespace {

using inagg::ports::Cutter;
using inagg::ports::FramePieces;
using inagg::ports::Offload;
using inagg::ports::OutputQueue;
using inagg::ports::SharedBytes;
using Bytes = std::vector<uint8_t>;

void read_exactly(void* to, size_t length) {
    if (length > 0 && std::fread(to, 1, length, stdin) != length) std::exit(2);
}

uint32_t read_number() {
    uint32_t number;
    read_exactly(&number, sizeof number);
    return number;
}

// The allocation has exactly the given size, so that AddressSanitizer detects the first byte outside.
Bytes read_bytes() {
    Bytes bytes(read_number());
    read_exactly(bytes.data(), bytes.size());
    bytes.shrink_to_fit();
    return bytes;
}

void write_number(size_t number) {
    const auto value = static_cast<uint32_t>(number);
    std::fwrite(&value, sizeof value, 1, stdout);
}

void write_all(const std::vector<Bytes>& all) {
    write_number(all.size());
    for (const Bytes& bytes : all) {
        write_number(bytes.size());
        std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    }
    std::fflush(stdout);
}

std::vector<Bytes> packets_of(Cutter& cutter) {
    std::vector<Bytes> packets;
    for (auto packet = cutter.next(); !packet.empty(); packet = cutter.next()) {
        cutter.fill();
        if (cutter.late() != nullptr) std::exit(3);
        packets.emplace_back(packet.begin(), packet.end());
    }
    return packets;
}

void cut() {
    Offload offload;
    read_exactly(&offload, sizeof offload);
    Bytes frame = read_bytes();
    Cutter cutter;
    write_number(static_cast<size_t>(cutter.start(offload, frame.data(), frame.size())));
    write_all(packets_of(cutter));
}

void queue() {
    const size_t room = read_number();
    const size_t frames = read_number();
    const size_t limit = read_number();
    SharedBytes shared(0);
    OutputQueue queue(frames, room, true, shared);
    size_t taken = 0;
    for (uint32_t left = read_number(); left > 0; --left) {
        const Bytes packet = read_bytes();
        if (queue.push(packet.data(), packet.size(), limit)) ++taken;
        // A port that the kernel refuses peeks repeatedly while its queue grows.
        FramePieces ignored;
        queue.peek(&ignored, 1);
    }
    std::vector<FramePieces> shown(frames);
    shown.resize(queue.peek(shown.data(), frames));
    std::vector<Bytes> all;
    for (const FramePieces& one : shown) {
        const auto* bytes = static_cast<const uint8_t*>(one[0].iov_base);
        all.emplace_back(bytes, bytes + one[0].iov_len);
    }
    write_number(taken);
    write_all(all);
    if (queue.clear().packets != taken || !queue.empty()) std::exit(3);
}

}  // namespace

int main() {
    for (int request = std::getchar(); request != EOF; request = std::getchar())
        request == 'c' ? cut() : queue();
    return 0;
}
