// SPDX-License-Identifier: Apache-2.0
//
// Gives up the capabilities (capabilities(7)) that a switch does not need.
#ifndef INAGG_SWITCH_PORTS_CAPABILITIES_HPP
#define INAGG_SWITCH_PORTS_CAPABILITIES_HPP

namespace inagg::ports {

// Keeps what a switch uses while it runs, of the calling thread's sets and of its bounding set, and forbids
// programs that it starts to gain more. Threads have capabilities of their own and get their creator's, so
// call this before the first thread is made. Throws std::system_error.
void drop_capabilities();

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_CAPABILITIES_HPP
