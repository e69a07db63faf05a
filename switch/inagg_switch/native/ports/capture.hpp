// SPDX-License-Identifier: Apache-2.0
//
// Capture files of the packets that a port receives and sends: libpcap's format, one file for each direction.
#ifndef INAGG_SWITCH_PORTS_CAPTURE_HPP
#define INAGG_SWITCH_PORTS_CAPTURE_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

namespace inagg::ports {

// One pcap file, open for writing. Owns the file. Any thread may use it.
class CaptureFile {
  public:
    // Creates or truncates the file. Throws std::system_error, whose what() starts with the path.
    explicit CaptureFile(const std::string& path);

    // Writes a frame with the current time into the file's buffer. Write errors are ignored: when the disk is
    // full, frames are missing from the file and the switch goes on.
    void add(const uint8_t* frame, size_t length);
    // Makes the added frames visible to readers of the file.
    void flush();

  private:
    struct Closer {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    std::mutex mutex_;  // guards the rest; no other lock is taken while it is held
    std::unique_ptr<std::FILE, Closer> file_;
    bool dirty_ = false;
};

// The two capture files of a port.
struct Capture {
    // Creates or truncates PATH_in.pcap and PATH_out.pcap. Throws std::system_error.
    explicit Capture(const std::string& path);
    void flush() {
        in.flush();
        out.flush();
    }

    CaptureFile in;
    CaptureFile out;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_CAPTURE_HPP
