// SPDX-License-Identifier: Apache-2.0
//
// Sends packets through ports::Impairment, in virtual time. Arguments: loss, duplicate, reorder, corrupt,
// delay_us, jitter_us, seed, packets, microseconds between them, bytes of each (18 or more), bytes that may
// wait, and the packet before which everything that waits is released (0: none). The first 14 bytes of a
// packet are 0, the next 4 its number, the rest 0xAA. Prints a line for each packet that leaves: when, and
// its bytes as hex; then the counters.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "ports/impairment.hpp"

namespace {

using namespace inagg::ports;

void print_due(Impairment& impairment, uint64_t until) {
    while (const auto packet = impairment.next(until)) {
        // The time at which the loop, woken at due_us(), passes it on.
        std::printf("%llu ", static_cast<unsigned long long>(packet->due_us));
        for (const uint8_t byte : packet->bytes) std::printf("%02x", byte);
        std::printf("\n");
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 13) return 2;
    const auto number = [argv](int at) { return std::strtoull(argv[at], nullptr, 10); };
    const auto real = [argv](int at) { return std::strtod(argv[at], nullptr); };
    ImpairmentCounters counters;
    Impairment impairment(counters, number(11));
    impairment.change({real(1), real(2), real(3), real(4), number(5), number(6), number(7)});
    const uint64_t packets = number(8);
    uint64_t now = 1;
    for (uint64_t i = 0; i < packets; ++i, now += number(9)) {
        print_due(impairment, now);
        if (i > 0 && i == number(12)) {
            impairment.release();
            print_due(impairment, now);
            if (impairment.due_us() != Impairment::kNever) return 1;
        }
        std::vector<uint8_t> packet(number(10), 0xAA);
        for (size_t at = 0; at < 14; ++at) packet[at] = 0;
        for (size_t at = 0; at < 4; ++at) packet[14 + at] = static_cast<uint8_t>(i >> (24 - 8 * at));
        impairment.add(packet.data(), packet.size(), 0, now);
    }
    while (impairment.due_us() != Impairment::kNever) print_due(impairment, impairment.due_us());
    for (size_t i = 0; i < kEffectNames.size(); ++i) {
        std::printf("%s %llu\n", kEffectNames[i],
                    static_cast<unsigned long long>(counters.effects[i].read()));
    }
}
