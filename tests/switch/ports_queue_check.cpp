// Compares ports::OutputQueue with a queue too simple to be wrong, over random pushes and pops; exits 0 if
// they agree.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "ports_queue.hpp"

namespace {

constexpr size_t kFrames = 8;
constexpr size_t kBytes = 1000;

[[noreturn]] void fail(const char* what, int step) {
    std::fprintf(stderr, "step %d: %s\n", step, what);
    std::exit(1);
}

void check_contents(const inagg::ports::OutputQueue& queue, const std::deque<std::string>& expected,
                    int step) {
    std::vector<iovec> shown(kFrames + 1);
    if (queue.peek(shown.data(), shown.size()) != expected.size()) fail("another number of frames", step);
    for (size_t i = 0; i < expected.size(); ++i) {
        const std::string frame(static_cast<const char*>(shown[i].iov_base), shown[i].iov_len);
        if (frame != expected[i]) fail("another frame", step);
    }
}

}  // namespace

int main() {
    std::mt19937 draw(1);
    inagg::ports::OutputQueue queue(kFrames, kBytes);
    std::deque<std::string> expected;
    int refused = 0;
    for (int step = 0; step < 200000; ++step) {
        if (draw() % 2 == 0) {
            const std::string frame(1 + draw() % 400, static_cast<char>(draw()));
            size_t waiting = frame.size();
            for (const auto& other : expected) waiting += other.size();
            if (queue.push(reinterpret_cast<const uint8_t*>(frame.data()), frame.size())) {
                expected.push_back(frame);
            } else {
                ++refused;
                // A gap at the end of the block may be lost to a frame that does not fit there, never more.
                if (expected.size() < kFrames && waiting + 2 * 400 <= kBytes) fail("refused with room", step);
            }
        } else if (!expected.empty()) {
            const size_t count = 1 + draw() % expected.size();
            queue.pop(count);
            expected.erase(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(count));
        }
        check_contents(queue, expected, step);
    }
    if (refused == 0) fail("never full: the test is too kind", 0);
    return 0;
}
