// SPDX-License-Identifier: Apache-2.0
#include "ports/capabilities.hpp"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

namespace inagg::ports {
namespace {

constexpr std::array kKept = {
    // Opens the packet socket of an interface that has been removed and is back.
    CAP_NET_RAW,
    // Makes the devices of fan_out.hpp, and receive buffers above net.core.rmem_max.
    CAP_NET_ADMIN,
    // Only root has it. Programs, captures and this package itself may be in folders of the user that called
    // sudo.
    CAP_DAC_OVERRIDE,
};

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

void drop_capabilities() {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) fail("PR_SET_NO_NEW_PRIVS");
    // The read fails at the first number that the kernel does not know. Without CAP_SETPCAP the drop fails;
    // the bounding set then has no effect, because no new privileges are given.
    for (int one = 0; prctl(PR_CAPBSET_READ, one, 0, 0, 0) >= 0; ++one) {
        if (std::ranges::find(kKept, one) == kKept.end()) prctl(PR_CAPBSET_DROP, one, 0, 0, 0);
    }
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
    if (syscall(SYS_capget, &header, sets.data()) < 0) fail("capget");
    std::array<__u32, _LINUX_CAPABILITY_U32S_3> kept{};
    for (const int one : kKept) kept[CAP_TO_INDEX(one)] |= CAP_TO_MASK(one);
    for (size_t i = 0; i < sets.size(); ++i) {
        sets[i].effective &= kept[i];
        sets[i].permitted &= kept[i];
        sets[i].inheritable &= kept[i];  // the ambient set follows
    }
    if (syscall(SYS_capset, &header, sets.data()) < 0) fail("capset");
}

}  // namespace inagg::ports
