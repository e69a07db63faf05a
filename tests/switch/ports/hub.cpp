// SPDX-License-Identifier: Apache-2.0
//
// A hub, written by hand, behind the ABI of native/runtime/program.h: it sends a frame to every replica of
// multicast group 1 except the ingress port. With it, tests of the ports need no P4 compiler.
#include <atomic>
#include <cerrno>
#include <mutex>
#include <vector>

#include "runtime/program.h"

namespace {

struct Hub {
    std::mutex mutex;
    std::vector<isw_replica> group;
};

Hub* hub(void* program) { return static_cast<Hub*>(program); }

void process(void* program, uint32_t, uint32_t port, const uint8_t* frame, size_t length, uint64_t,
             const isw_late* late, isw_emit_fn emit, isw_queue_fn, void* ctx) {
    if (late != nullptr) late->fill(late->ctx);
    const auto& group = hub(program)->group;
    int again = 0;
    for (const isw_replica& replica : group) {
        if (replica.port == port) continue;
        emit(ctx, replica.port, frame, length, length, group.size(), again, 0);
        again = 1;
    }
}

int multicast_set(void* program, uint32_t group, const isw_replica* replicas, size_t count) {
    if (group != 1) return -EINVAL;
    hub(program)->group.assign(replicas, replicas + count);
    return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const isw_api* isw_program_v1(void) {
    static const isw_api api = [] {
        isw_api functions{};
        functions.abi_version = ISW_ABI_VERSION;
        functions.one_thread = "it is a hub";
        functions.create = [](uint64_t, uint32_t, isw_text_fn, void*) -> void* { return new Hub; };
        functions.destroy = [](void* program) { delete hub(program); };
        functions.lock = [](void* program) { hub(program)->mutex.lock(); };
        functions.unlock = [](void* program) { hub(program)->mutex.unlock(); };
        functions.lock_thread = [](void* program, uint32_t) { hub(program)->mutex.lock(); };
        functions.unlock_thread = [](void* program, uint32_t) { hub(program)->mutex.unlock(); };
        functions.process = process;
        functions.multicast_set = multicast_set;
        functions.priority_queues = [](void*, uint32_t) {};
        return functions;
    }();
    return &api;
}
