// SPDX-License-Identifier: Apache-2.0
//
// Divides the frames of a port among the threads of a switch: each thread has a socket on the port, whose
// filter accepts the thread's share (socket(7), SO_ATTACH_FILTER). Every frame is in exactly one share. Which
// one is a matter of speed only: the program does the same on every thread (runtime/program.h).
#ifndef INAGG_SWITCH_PORTS_STEERING_HPP
#define INAGG_SWITCH_PORTS_STEERING_HPP

#include <linux/filter.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/program.h"

namespace inagg::ports {

// The thread whose share a frame is in. Frames without the number of `steering` (NULL: all) are thread 0's.
uint32_t thread_of(const isw_steering* steering, uint32_t threads, const uint8_t* frame, size_t length);

// The filter of a thread's sockets: it accepts the frames of which thread_of() is `thread`. A thread beyond
// the last one has no frames.
std::vector<sock_filter> filter_of(const isw_steering* steering, uint32_t threads, uint32_t thread);

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_STEERING_HPP
