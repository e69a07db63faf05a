// SPDX-License-Identifier: Apache-2.0
//
// How a worker and the server in its own process exchange datagrams: in memory, past the kernel.
#ifndef INAGG_OWN_SERVER_HPP
#define INAGG_OWN_SERVER_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "transport/udp_socket.hpp"
#include "transport/wakeup.hpp"
#include "wire/wire.hpp"

namespace inagg {

// Datagrams in memory, some of them copies.
class Mail {
  public:
    bool empty() const { return datagrams_.empty(); }
    // Remembers where they are.
    void refer_to(std::span<const Outgoing> datagrams) {
        for (const Outgoing& one : datagrams) {
            datagrams_.push_back(one.datagram);
        }
    }
    void copy(std::span<const Outgoing> datagrams) {
        std::size_t bytes = 0;
        for (const Outgoing& one : datagrams) {
            bytes += one.datagram.size();
        }
        std::vector<std::byte>& room = copies_.emplace_back(bytes);
        std::size_t end = 0;
        for (const Outgoing& one : datagrams) {
            const auto copied = std::span(room).subspan(end, one.datagram.size());
            std::ranges::copy(one.datagram, copied.begin());
            datagrams_.push_back(copied);
            end += copied.size();
        }
    }
    void clear() {
        datagrams_.clear();
        copies_.clear();
    }
    // Calls take(bytes, size) for each row of datagrams of one size, one behind the other in memory.
    template <typename Take>
    void for_each_row(Take take) const {
        for (std::size_t i = 0; i < datagrams_.size();) {
            const std::span<const std::byte> first = datagrams_[i];
            std::size_t count = 1;
            while (i + count < datagrams_.size() && datagrams_[i + count].size() == first.size() &&
                   datagrams_[i + count].data() == first.data() + count * first.size()) {
                ++count;
            }
            take(std::span(first.data(), count * first.size()), first.size());
            i += count;
        }
    }

  private:
    std::vector<std::span<const std::byte>> datagrams_;
    std::deque<std::vector<std::byte>> copies_;
};

// What a server has for a worker. Any thread may put in; the worker's thread takes out.
class Mailbox {
  public:
    // `wakeup`: of the worker's thread. It outlives this.
    explicit Mailbox(Wakeup& wakeup) : wakeup_(wakeup) {}

    // `stay`: the datagrams do not change, and need not be copied, until the worker has used them.
    void put(std::span<const Outgoing> datagrams, bool stay) {
        const std::lock_guard lock(mutex_);
        if (stay) {
            mail_.refer_to(datagrams);
        } else {
            mail_.copy(datagrams);
        }
        if (std::exchange(asleep_, false)) {
            wakeup_.wake();
        }
    }
    // Whether the worker may sleep: there is no mail, and what comes now wakes it.
    bool fall_asleep() {
        const std::lock_guard lock(mutex_);
        asleep_ = mail_.empty();
        return asleep_;
    }
    // Whether there is mail. The worker is awake.
    bool wake_up() {
        const std::lock_guard lock(mutex_);
        asleep_ = false;
        return !mail_.empty();
    }
    // Exchanges what has come for `into`, which is empty.
    void take(Mail& into) {
        const std::lock_guard lock(mutex_);
        std::swap(mail_, into);
    }

  private:
    Wakeup& wakeup_;
    std::mutex mutex_;  // guards what follows
    Mail mail_;
    bool asleep_ = false;
};

// The server in the worker's process, as the worker sees it. All methods may be called from any thread.
class OwnServer {
  public:
    OwnServer() = default;
    OwnServer(const OwnServer&) = delete;
    OwnServer& operator=(const OwnServer&) = delete;
    virtual ~OwnServer() = default;

    virtual UdpAddress local_address() const = 0;
    // From now on what it has for a rank of a job goes to `mailbox`, which lives until detach(). The mail is
    // in memory that lives as long as what this returns. Throws std::invalid_argument if it does not serve
    // the job.
    virtual std::shared_ptr<const void> attach(std::uint16_t job, std::uint32_t epoch, unsigned rank,
                                               Mailbox& mailbox) = 0;
    virtual void detach(const Mailbox& mailbox) = 0;
    // Takes datagrams of an attached rank. It may put some in its mailbox before this returns.
    virtual void deliver(std::span<const Outgoing> datagrams) = 0;
};

}  // namespace inagg

#endif
