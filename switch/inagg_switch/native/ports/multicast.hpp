// SPDX-License-Identifier: Apache-2.0
//
// The copies of the multicast packet that is being processed. As long as they are equal they are kept: then
// they leave once, through the fan-out device of their ports, or from the queue of each port if there is no
// device.
#ifndef INAGG_SWITCH_PORTS_MULTICAST_HPP
#define INAGG_SWITCH_PORTS_MULTICAST_HPP

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ports/fan_out.hpp"
#include "ports/outbox.hpp"
#include "ports/port.hpp"

namespace inagg::ports {

// Belongs to one PacketLoop, whose thread alone uses it; of `fan_outs` see FanOuts.
class Multicast {
  public:
    Multicast(FanOuts& fan_outs, Outbox& outbox) : fan_outs_(fan_outs), outbox_(outbox) {}

    // The frames that follow are copies of another packet, of which none is kept.
    void begin_packet(uint64_t now_us) {
        differ_ = false;
        now_us_ = now_us;
    }
    // The program emits a frame. `again`: it equals the one before.
    void emitted(bool again) { last_is_kept_ &= again; }
    // Keeps a copy until all are known. Returns false, and has sent those that were kept, if it differs from
    // them. `shared`: as in Outbox::add().
    bool keep(Port& port, const uint8_t* frame, size_t length, size_t shared);
    // Sends the kept copies.
    void send() {
        if (!ports_.empty()) send_kept();
    }

  private:
    bool equals_kept(const uint8_t* frame, size_t length, size_t shared) const;
    const uint8_t* kept_frame();
    void send_kept();

    FanOuts& fan_outs_;
    Outbox& outbox_;
    uint64_t now_us_ = 0;
    // A frame, whose last bytes stay in the program's memory.
    std::vector<uint8_t> head_;       // the rest of the frame
    const uint8_t* frame_ = nullptr;  // where the program made it; others may have overwritten the head
    size_t length_ = 0;               // of the frame
    size_t shared_ = 0;               // bytes at its end that other copies have too
    std::vector<uint8_t> whole_;      // memory for the frame
    std::vector<Port*> ports_;        // empty: no copy is kept
    bool last_is_kept_ = false;       // the program's last copy is known to equal the kept ones
    bool differ_ = false;             // later copies are queued one by one
};

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_MULTICAST_HPP
