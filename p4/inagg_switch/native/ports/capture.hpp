// SPDX-License-Identifier: Apache-2.0
//
// What a port received and sent, in capture files: libpcap's format, one file a direction.
#ifndef INAGG_SWITCH_PORTS_CAPTURE_HPP
#define INAGG_SWITCH_PORTS_CAPTURE_HPP

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

namespace inagg::ports {

class CaptureFile {
  public:
    // Throws std::system_error, whose what() is the path.
    explicit CaptureFile(const std::string& path);

    // What is written must be flushed to be seen. A full disk loses frames, not the switch.
    void add(const uint8_t* frame, size_t length);
    void flush();

  private:
    struct Closer {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    std::unique_ptr<std::FILE, Closer> file_;
    bool dirty_ = false;
};

struct Capture {
    // DIR/portN_in.pcap and DIR/portN_out.pcap, made anew.
    Capture(const std::string& folder, uint32_t port);
    void flush() {
        in.flush();
        out.flush();
    }

    CaptureFile in;
    CaptureFile out;
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_CAPTURE_HPP
