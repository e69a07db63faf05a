// SPDX-License-Identifier: Apache-2.0
//
// inagg._core.Transport.
#include "transport/transport.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "transport/udp_socket.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace inagg {
namespace {

// A transport that keeps the arrays given to it alive. The GIL guards its members.
class PyTransport {
  public:
    PyTransport(const EngineConfig& config, std::vector<Ends> ends, Peers peers, double spin)
        : config_(config), transport_(config, std::move(ends), std::move(peers), spin) {
        living().insert(this);
    }

    ~PyTransport() {
        living().erase(this);
        const nb::gil_scoped_release release;
        transport_.close();
    }

    // Called at the interpreter's exit, before it ends threads. A thread that returned from a wait to an
    // interpreter that has ended would abort the process.
    static void close_all() {
        std::vector<nb::object> transports;
        for (PyTransport* transport : living()) {
            transports.push_back(nb::find(transport));
        }
        for (const nb::object& transport : transports) {
            auto& self = nb::cast<PyTransport&>(transport);
            self.close();
            // A forked child has none of the threads that wait.
            while (self.waiting_ > 0 && !self.transport_.forked()) {
                const nb::gil_scoped_release release;
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        }
    }

    IpPort local_address() const {
        const UdpAddress address = transport_.local_address();
        return {address.ip, address.port};
    }

    Ticket submit_array(const SummedArray& array, unsigned lane_bits, bool average,
                        std::optional<std::uint64_t> stochastic, std::uint32_t context,
                        const std::optional<FloatArray>& residual, bool filled) {
        const Ticket ticket =
            submit({floats_of(array, stochastic, residual), lane_bits, average, context, filled});
        alive_.emplace(ticket, KeptAlive{.array = array, .residual = residual});
        return ticket;
    }

    Ticket submit_address(std::uintptr_t address, std::size_t elements, unsigned lane_bits, bool average,
                          std::optional<std::uint64_t> stochastic, std::uint32_t context) {
        const std::span data(reinterpret_cast<float*>(address), elements);
        const HostFloats floats{.memory = std::as_writable_bytes(data), .rounding = rounding(stochastic)};
        return submit({floats, lane_bits, average, context});
    }

    void filled(Ticket ticket) {
        require_array(alive_, ticket);
        alive([&] { transport_.filled(ticket); });
    }

    Ticket submit_staged(PyStaging& staging, bool average, std::uint32_t context) {
        const Ticket ticket = submit(staging.request(average, context));
        alive_.emplace(ticket, KeptAlive{.staging = nb::find(staging)});
        return ticket;
    }

    void scanned(PyStaging& staging, const PyStaging::Blocks& blocks, const PyStaging::Rows& elements) {
        alive(
            [&] { transport_.scanned(*staging, {blocks.data(), blocks.size()}, as_span(elements, blocks)); });
    }

    void packed(PyStaging& staging, std::size_t blocks) {
        alive([&] { transport_.packed(*staging, blocks); });
    }

    std::optional<std::pair<std::size_t, std::size_t>> progress(PyStaging& staging, std::size_t known,
                                                                std::size_t summed,
                                                                std::optional<double> timeout) {
        const auto now = in_slices(
            timeout, [&](double slice) { return transport_.progress(*staging, known, summed, slice); });
        return now ? std::optional(std::pair(now->known, now->summed)) : std::nullopt;
    }

    nb::object special_sums(PyStaging& staging) const {
        return to_arrays(transport_.special_sums(*staging), staging->block_elements());
    }

    nb::object outlier_residuals(PyStaging& staging) const {
        return to_arrays(transport_.outlier_residuals(*staging), staging->block_elements());
    }

    bool wait(Ticket ticket, std::optional<double> timeout) {
        const bool done = in_slices(timeout, [&](double slice) { return transport_.wait(ticket, slice); });
        if (done) {
            let_go_of(ticket);
        }
        return done;
    }

    void watch(Ticket ticket) { transport_.watch(ticket); }

    std::optional<Ticket> next_done(std::optional<double> timeout) {
        const auto ticket = in_slices(timeout, [&](double slice) { return transport_.next_done(slice); });
        if (ticket) {
            let_go_of(*ticket);
        }
        return ticket;
    }

    std::vector<std::uint32_t> freeze() {
        return alive([&] {
            const Waiting waiting(waiting_);
            const nb::gil_scoped_release release;
            return transport_.freeze();
        });
    }

    nb::bytes kept(std::uint32_t chunk) const { return to_bytes(transport_.kept(chunk)); }

    bool fill(const nb::bytes& result) {
        return alive([&] { return transport_.fill(as_span(result)); });
    }

    void go_on(const EngineConfig& config, std::vector<Ends> ends, Peers peers) {
        alive([&] { transport_.go_on(config, std::move(ends), std::move(peers)); });
        config_ = config;
    }

    const EngineConfig& config() const { return config_; }

    void fail(const std::string& reason) {
        const nb::gil_scoped_release release;
        transport_.fail(reason);
    }

    void close() {
        {
            const nb::gil_scoped_release release;
            transport_.close();
        }
        // As in let_go_of().
        const auto kept = std::exchange(alive_, {});
    }

    nb::object failure() const { return failure_object(transport_.failure(), config_); }
    nb::dict stats() const { return to_dict(transport_.stats()); }

  private:
    // Takes the objects out of the map before it releases them: the release may run Python code and other
    // threads, which may find the same ticket done.
    void let_go_of(Ticket ticket) { const auto kept = alive_.extract(ticket); }

    Ticket submit(const Request& request) {
        return alive([&] { return transport_.submit(request); });
    }

    // Calls `call`; translates the failure of the group.
    template <typename Call>
    auto alive(Call call) -> decltype(call()) {
        try {
            return call();
        } catch (const GroupFailed& error) {
            raise_engine_error(error.failure(), config_);
        }
    }

    // Waits with the GIL released, in slices, so that Python can handle a Ctrl-C between them.
    template <typename Wait>
    auto in_slices(std::optional<double> timeout, Wait wait) -> decltype(wait(0.0)) {
        constexpr double slice = 0.1;
        double left = timeout.value_or(INFINITY);
        if (!(left >= 0)) {
            throw std::invalid_argument("timeout_s must not be negative");
        }
        for (;; left -= slice) {
            const auto result = alive([&] {
                const Waiting waiting(waiting_);
                const nb::gil_scoped_release release;
                return wait(std::min(left, slice));
            });
            if (result) {
                return result;
            }
            if (PyErr_CheckSignals() != 0) {
                throw nb::python_error();
            }
            if (left <= slice) {
                return {};
            }
        }
    }

    // Counts a waiting thread until it has the GIL again.
    class Waiting {
      public:
        explicit Waiting(int& count) : count_(++count) {}
        ~Waiting() { --count_; }
        Waiting(const Waiting&) = delete;
        Waiting& operator=(const Waiting&) = delete;

      private:
        int& count_;
    };

    static std::set<PyTransport*>& living() {
        static std::set<PyTransport*> transports;
        return transports;
    }

    EngineConfig config_;
    Transport transport_;
    int waiting_ = 0;
    std::map<Ticket, KeptAlive> alive_;
};

// Each packet thread gets the datagrams of its own chunks.
void steer(std::vector<Ends>& ends) {
    const auto parts = static_cast<unsigned>(ends.size());
    const sockaddr_in address = to_sockaddr(ends.front().socket.local_address());
    const auto elsewhere = [&](const Ends& one) {
        return !same(to_sockaddr(one.socket.local_address()), address);
    };
    if (std::ranges::any_of(ends, elsewhere)) {
        throw std::invalid_argument("the sockets of all packet threads have one address");
    }
    ends.front().socket.steer_unicast(parts);
    for (unsigned part = 0; part < parts; ++part) {
        if (ends[part].results) {
            ends[part].results->steer_multicast(part, parts);
        }
    }
}

// The ends of the packet threads. One thread's first socket is connected if there is one destination, and no
// other source. The kernel does not choose between connected sockets, so those of several threads are not.
std::vector<Ends> ends_of(const Sockets& sockets, const Route& route) {
    const auto& aggregator = route.aggregator;
    const auto results_of = [&](std::optional<int> fd) {
        std::optional<UdpSocket> results;
        if (fd && aggregator) {
            results.emplace(UdpSocket::duplicate_of(*fd));
            results->connect({aggregator->first, aggregator->second});
        }
        return results;
    };
    std::vector<Ends> ends;
    ends.push_back({open_socket(sockets.local, sockets.socket_fd), results_of(sockets.results_fd)});
    for (const auto& [socket_fd, results_fd] : sockets.more) {
        ends.push_back({UdpSocket::duplicate_of(socket_fd), results_of(results_fd)});
    }
    const bool connect = aggregator && route.servers.empty() && ends.size() == 1;
    for (Ends& each : ends) {
        if (connect) {
            each.socket.connect({aggregator->first, aggregator->second});
        } else {
            each.socket.disconnect();  // it may have been another way's
            each.socket.prepare();
        }
    }
    if (ends.size() > 1) {
        steer(ends);
    } else if (!connect) {
        ends.front().socket.take_all();
    }
    return ends;
}

// The way whose chunks the own server sums: that of the rank's number. With racks it has a part in other
// ways.
std::optional<unsigned> home_of(const Route& route, unsigned rank, const std::shared_ptr<OwnServer>& own) {
    if (!own) {
        return std::nullopt;
    }
    const UdpAddress address = own->local_address();
    const unsigned way = route.servers.size() == 1 ? 0 : rank;
    if (way >= route.servers.size() || route.servers[way] != IpPort(address.ip, address.port)) {
        throw std::invalid_argument("own_server is the server of the rank's number, or the only one");
    }
    return way;
}

// With both, the switch is the destination, and after it the server at home; all servers answer beside it.
// With the switch alone there are none, if the socket is connected.
Peers peers_of(const Route& route, std::optional<unsigned> home, bool connected) {
    Peers peers;
    for (const auto& [ip, port] : route.servers) {
        (route.aggregator ? peers.sources : peers.destinations).push_back(to_sockaddr({ip, port}));
    }
    if (route.aggregator && !connected) {
        peers.destinations.push_back(to_sockaddr({route.aggregator->first, route.aggregator->second}));
        if (home) {
            const auto& [ip, port] = route.servers[*home];
            peers.destinations.push_back(to_sockaddr({ip, port}));
        }
    }
    return peers;
}

// Calls use(config, ends, peers), which makes a transport or changes its way. Takes over the descriptors,
// unless it throws.
template <typename Use>
void with_ends(const JobShape& job, unsigned rank, std::optional<unsigned> member, const Route& route,
               const Sockets& sockets, const nb::object& own_server, const RetransmissionPolicy& policy,
               bool keeps_results, Use use) {
    const auto& [aggregator, servers, roots, threads] = route;
    if (!aggregator && servers.empty()) {
        throw std::invalid_argument("give aggregator, servers or both");
    }
    std::shared_ptr<OwnServer> own = own_server.is_none() ? nullptr : rounds_of(own_server);
    if (!own && !own_server.is_none()) {
        own = server_of(own_server);
    }
    const std::optional<unsigned> home = home_of(route, rank, own);
    const EngineConfig config{
        .job = job,
        .rank = rank,
        .member = member.value_or(rank),
        .ways = {job.slots, servers.empty() ? roots : static_cast<unsigned>(servers.size())},
        .ways_apart = !aggregator,
        .threads = threads,
        .home = home,
        .policy = policy,
        .keeps_results = keeps_results,
        .outlasts_silence = keeps_results};
    config.validate();
    Peers peers = peers_of(route, home, servers.empty() && sockets.more.empty());
    peers.own_server = own;
    use(config, ends_of(sockets, route), std::move(peers));
    const auto take_over = [](std::optional<int> given) {
        if (given) {
            const Descriptor taken_over(*given);  // the duplicate stays
        }
    };
    take_over(sockets.socket_fd);
    take_over(sockets.results_fd);
    for (const auto& [socket_fd, results_fd] : sockets.more) {
        take_over(socket_fd);
        take_over(results_fd);
    }
}

void make_transport(PyTransport* self, const JobShape& job, unsigned rank, std::optional<unsigned> member,
                    const Route& route, const Sockets& sockets, const nb::object& own_server,
                    const RetransmissionPolicy& policy, double spin, bool keeps_results) {
    with_ends(job, rank, member, route, sockets, own_server, policy, keeps_results,
              [&](const EngineConfig& config, std::vector<Ends> ends, Peers peers) {
                  new (self) PyTransport(config, std::move(ends), std::move(peers), spin);
              });
}

void go_on(PyTransport& self, const JobShape& job, std::optional<unsigned> member, const Route& route,
           const Sockets& sockets, const nb::object& own_server, const RetransmissionPolicy& policy) {
    const EngineConfig& before = self.config();
    with_ends(job, before.rank, member, route, sockets, own_server, policy, before.keeps_results,
              [&](const EngineConfig& config, std::vector<Ends> ends, Peers peers) {
                  self.go_on(config, std::move(ends), std::move(peers));
              });
}

}  // namespace

void define_transport(nb::module_& m) {
    nb::class_<PyTransport>(m, "Transport")
        .def("__init__", &make_transport, "job"_a, nb::kw_only(), "rank"_a, "member"_a = nb::none(),
             "route"_a, "sockets"_a, "own_server"_a.none() = nb::none(), "policy"_a = RetransmissionPolicy{},
             "spin_s"_a = 0.0, "keeps_results"_a = false)
        .def_prop_ro("local_address", &PyTransport::local_address)
        .def("submit", &PyTransport::submit_array, "array"_a.noconvert(), nb::kw_only(), "lane_bits"_a = 32,
             "average"_a = false, "stochastic"_a = nb::none(), "context"_a = 0,
             "residual"_a.noconvert() = nb::none(), "filled"_a = true)
        .def("filled", &PyTransport::filled, "ticket"_a)
        .def("submit", &PyTransport::submit_address, "address"_a.noconvert(), "elements"_a, nb::kw_only(),
             "lane_bits"_a = 32, "average"_a = false, "stochastic"_a = nb::none(), "context"_a = 0)
        .def("submit_staged", &PyTransport::submit_staged, "staging"_a, nb::kw_only(), "average"_a = false,
             "context"_a = 0)
        .def("scanned", &PyTransport::scanned, "staging"_a, "special_blocks"_a.noconvert(),
             "special_elements"_a.noconvert())
        .def("packed", &PyTransport::packed, "staging"_a, "blocks"_a)
        .def("progress", &PyTransport::progress, "staging"_a, "known"_a, "summed"_a,
             "timeout_s"_a = nb::none())
        .def("special_sums", &PyTransport::special_sums, "staging"_a)
        .def("outlier_residuals", &PyTransport::outlier_residuals, "staging"_a)
        .def("wait", &PyTransport::wait, "ticket"_a, "timeout_s"_a = nb::none())
        .def("watch", &PyTransport::watch, "ticket"_a)
        .def("next_done", &PyTransport::next_done, "timeout_s"_a = nb::none())
        .def("freeze", &PyTransport::freeze)
        .def("kept", &PyTransport::kept, "chunk"_a)
        .def("fill", &PyTransport::fill, "result"_a)
        .def("go_on", &go_on, "job"_a, nb::kw_only(), "member"_a = nb::none(), "route"_a, "sockets"_a,
             "own_server"_a.none() = nb::none(), "policy"_a = RetransmissionPolicy{})
        .def("fail", &PyTransport::fail, "reason"_a)
        .def_prop_ro("failure", &PyTransport::failure)
        .def("stats", &PyTransport::stats)
        .def("close", &PyTransport::close);
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&PyTransport::close_all));
}

}  // namespace inagg
