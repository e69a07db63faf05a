// SPDX-License-Identifier: Apache-2.0
//
// The link monitor: a socket that becomes readable when any network interface of this network namespace
// changes (rtnetlink(7)).
#ifndef INAGG_SWITCH_PORTS_LINKS_HPP
#define INAGG_SWITCH_PORTS_LINKS_HPP

namespace inagg::ports {

// Opens the socket, non-blocking. The caller closes it. Throws std::system_error.
int open_link_monitor();

// Discards all messages. They can get lost, so the caller reads the state of the interfaces instead
// (read_link()).
void drain_link_monitor(int fd);

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_LINKS_HPP
