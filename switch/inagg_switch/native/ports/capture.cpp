// SPDX-License-Identifier: Apache-2.0
#include "ports/capture.hpp"

#include <cerrno>
#include <ctime>
#include <system_error>

namespace inagg::ports {
namespace {

// draft-ietf-opsawg-pcap, sections 4 and 5; in this machine's byte order, with nanoseconds.
struct FileHeader {
    uint32_t magic = 0xA1B23C4D;
    uint16_t major = 2;
    uint16_t minor = 4;
    uint32_t reserved[2] = {};
    uint32_t longest = 262144;
    uint32_t link_type = 1;  // Ethernet
};

struct PacketHeader {
    uint32_t seconds;
    uint32_t nanoseconds;
    uint32_t captured;
    uint32_t length;
};

}  // namespace

CaptureFile::CaptureFile(const std::string& path) : file_(std::fopen(path.c_str(), "wbe")) {
    if (file_ == nullptr) throw std::system_error(errno, std::generic_category(), path);
    const FileHeader header;
    std::fwrite(&header, sizeof header, 1, file_.get());
    std::fflush(file_.get());
}

void CaptureFile::add(const uint8_t* frame, size_t length) {
    const std::lock_guard guard(mutex_);
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    const auto size = static_cast<uint32_t>(length);
    const PacketHeader header{static_cast<uint32_t>(now.tv_sec), static_cast<uint32_t>(now.tv_nsec), size,
                              size};
    std::fwrite(&header, sizeof header, 1, file_.get());
    std::fwrite(frame, 1, length, file_.get());
    dirty_ = true;
}

void CaptureFile::flush() {
    const std::lock_guard guard(mutex_);
    if (!dirty_) return;
    std::fflush(file_.get());
    dirty_ = false;
}

Capture::Capture(const std::string& path) : in(path + "_in.pcap"), out(path + "_out.pcap") {}

}  // namespace inagg::ports
