// SPDX-License-Identifier: Apache-2.0
//
// A socket that becomes readable when some network interface of this namespace changed: rtnetlink(7).
#ifndef INAGG_SWITCH_PORTS_LINKS_HPP
#define INAGG_SWITCH_PORTS_LINKS_HPP

namespace inagg::ports {

// Throws std::system_error.
int open_link_monitor();

// What changed is not read from the messages: they can be lost, the interfaces themselves cannot lie.
void drain_link_monitor(int fd);

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_LINKS_HPP
