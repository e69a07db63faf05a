// SPDX-License-Identifier: Apache-2.0
//
// inagg._core.Server and ServedPart, and inagg._core.ServedJob for tests in virtual time.
#include "server/server.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "server/served_job.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace inagg {
namespace {

template <std::size_t N>
nb::dict to_dict(const std::array<const char*, N>& names, const std::array<std::uint64_t, N>& counts) {
    nb::dict out;
    for (std::size_t i = 0; i < N; ++i) {
        out[names[i]] = counts[i];
    }
    return out;
}

// What leaves: (rank, ABOVE, or None for all; datagram).
using Replies = std::vector<std::pair<std::optional<int>, nb::bytes>>;
constexpr int ABOVE = -1;

std::optional<int> receiver_of(unsigned destination) {
    if (destination == ServedJob::ALL) {
        return std::nullopt;
    }
    return destination == ServedJob::ABOVE ? ABOVE : static_cast<int>(destination);
}

Replies take_replies(ServedJob& self) {
    Replies out;
    for (const Outgoing& reply : self.replies()) {
        out.emplace_back(receiver_of(reply.destination), to_bytes(reply.datagram));
    }
    self.clear_replies();
    return out;
}

// member: None is the switch.
Replies receive(ServedJob& self, const nb::bytes& datagram, std::optional<unsigned> member, bool congested) {
    if (member) {
        self.receive(as_span(datagram), *member, congested);
    } else {
        self.receive_relayed(as_span(datagram), congested);
    }
    return take_replies(self);
}

Replies receive_from_above(ServedJob& self, const nb::bytes& datagram, bool congested) {
    self.receive_from_above(as_span(datagram), congested);
    return take_replies(self);
}

// A server's part of a job (Server::serve), without what all parts have in common. above: the server above,
// and the rank as which this one sends to it.
struct PyPart {
    unsigned index = 0;
    std::map<unsigned, IpPort> members;
    std::optional<IpPort> relay;
    std::optional<unsigned> home;
    std::optional<std::pair<unsigned, IpPort>> above;

    ServedPart of(const JobShape& job, unsigned servers) const {
        ServedPart part;
        part.config.job = job;
        part.config.servers = servers;
        part.config.index = index;
        part.config.relayed = relay.has_value();
        part.config.home = home;
        for (const auto& [rank, address] : members) {
            part.members[rank] = {address.first, address.second};
            part.config.members |= std::uint64_t{1} << (rank % 64);
        }
        if (above) {
            part.config.rank_above = above->first;
        }
        if (const auto& beyond = above ? std::optional(above->second) : relay) {
            part.beyond = UdpAddress{beyond->first, beyond->second};
        }
        return part;
    }
};

// What the version of a chunk holds; nothing if it has never been used.
std::optional<nb::dict> held(const ServedJob& self, std::uint32_t chunk) {
    const ServedJob::Version& version = self.version(chunk);
    if (version.members == 0) {
        return std::nullopt;
    }
    nb::dict out;
    out["chunk"] = version.chunk;
    out["members"] = version.members;
    out["flags"] = version.announced.flags;
    out["exponent"] = version.announced.exponent;
    out["flags_check"] = version.announced.flags_check;
    out["exponent_check"] = version.announced.exponent_check;
    out["checksum"] = version.checksum;
    out["words"] = to_bytes(self.words(chunk));
    out["final"] = version.final;
    return out;
}

class PyServer {
  public:
    PyServer(UdpSocket socket, std::size_t memory)
        : server_(std::make_shared<Server>(std::move(socket), memory)) {
        living().insert(this);
    }
    ~PyServer() {
        living().erase(this);
        close();
    }

    // Called at the interpreter's exit.
    static void close_all() {
        std::vector<nb::object> servers;  // another thread may drop one while this one waits
        for (PyServer* server : living()) {
            servers.push_back(nb::find(server));
        }
        for (const nb::object& server : servers) {
            nb::cast<PyServer&>(server).close();
        }
    }

    IpPort local_address() const {
        const UdpAddress address = server_->local_address();
        return {address.ip, address.port};
    }

    std::optional<std::string> failure() const { return server_->failure(); }
    std::shared_ptr<Server> server() const { return server_; }

    void serve(const JobShape& job, const std::vector<PyPart>& parts, unsigned servers) {
        std::vector<ServedPart> served;
        served.reserve(parts.size());
        for (const PyPart& part : parts) {
            served.push_back(part.of(job, servers));
        }
        const nb::gil_scoped_release release;
        server_->serve(served);
    }

    void drop(std::uint16_t job, std::uint32_t epoch) {
        const nb::gil_scoped_release release;
        server_->drop(job, epoch);
    }

    nb::dict stats() {
        ServerStats stats;
        {
            const nb::gil_scoped_release release;
            stats = server_->stats();
        }
        nb::dict jobs;
        for (const auto& [job, counts] : stats.jobs) {
            jobs[nb::int_(job)] = to_dict(OUTCOME_NAMES, counts);
        }
        nb::dict chunks;
        for (const auto& [job, counts] : stats.chunks) {
            chunks[nb::int_(job)] = to_dict(SUMMED_IN_NAMES, counts);
        }
        nb::dict out;
        out["memory"] = stats.memory;
        out["unknown"] = stats.unknown;
        out["send_drops"] = stats.send_drops;
        out["jobs"] = jobs;
        out["chunks"] = chunks;
        return out;
    }

    nb::object chunks(std::uint16_t job, std::uint32_t epoch) {
        std::optional<ChunkCounts> found;
        {
            const nb::gil_scoped_release release;
            found = server_->chunks(job, epoch);
        }
        return found ? nb::object(to_dict(SUMMED_IN_NAMES, *found)) : nb::none();
    }

    void close() {
        const nb::gil_scoped_release release;
        server_->close();
    }

  private:
    static std::set<PyServer*>& living() {
        static std::set<PyServer*> servers;
        return servers;
    }

    std::shared_ptr<Server> server_;
};

}  // namespace

std::shared_ptr<OwnServer> server_of(nb::handle server) { return nb::cast<PyServer&>(server).server(); }

void define_server(nb::module_& m) {
    auto served_job = nb::class_<ServedJob>(m, "ServedJob");
    served_job
        .def(
            "__init__",
            [](ServedJob* self, const JobShape& job, unsigned servers, unsigned index, bool relayed,
               std::uint64_t members, std::optional<unsigned> rank_above, std::optional<unsigned> home) {
                new (self) ServedJob({.job = job,
                                      .servers = servers,
                                      .index = index,
                                      .relayed = relayed,
                                      .members = members,
                                      .rank_above = rank_above,
                                      .home = home});
            },
            "job"_a, nb::kw_only(), "servers"_a = 1, "index"_a = 0, "relayed"_a = false, "members"_a = 0,
            "rank_above"_a = nb::none(), "home"_a = nb::none())
        .def("receive", &receive, "datagram"_a, "member"_a.none(), "congested"_a = false)
        .def("receive_from_above", &receive_from_above, "datagram"_a, "congested"_a = false)
        .def("held", &held, "chunk"_a)
        .def_prop_ro("memory", [](const ServedJob& self) { return self.config().memory(); })
        .def_prop_ro("counts", [](const ServedJob& self) { return to_dict(OUTCOME_NAMES, self.counts()); })
        .def_prop_ro("chunks", [](const ServedJob& self) { return to_dict(SUMMED_IN_NAMES, self.chunks()); });
    served_job.attr("ABOVE") = ABOVE;
    nb::class_<PyPart>(m, "ServedPart")
        .def(
            "__init__",
            [](PyPart* self, const std::map<unsigned, IpPort>& members, unsigned index,
               const std::optional<IpPort>& relay, std::optional<unsigned> home,
               const std::optional<std::pair<unsigned, IpPort>>& above) {
                new (self) PyPart{index, members, relay, home, above};
            },
            "members"_a, nb::kw_only(), "index"_a = 0, "relay"_a = nb::none(), "home"_a = nb::none(),
            "above"_a = nb::none());
    nb::class_<PyServer>(m, "Server")
        .def(
            "__init__",
            [](PyServer* self, const std::optional<IpPort>& local, std::optional<int> socket_fd,
               std::size_t memory) {
                new (self) PyServer(open_socket(local, socket_fd), memory);
                if (socket_fd) {
                    const Descriptor taken_over(*socket_fd);  // the duplicate stays
                }
            },
            nb::kw_only(), "local"_a = nb::none(), "socket_fd"_a = nb::none(), "memory"_a)
        .def_prop_ro("local_address", &PyServer::local_address)
        .def_prop_ro("failure", &PyServer::failure)
        .def("serve", &PyServer::serve, "job"_a, "parts"_a, nb::kw_only(), "servers"_a = 1)
        .def("drop", &PyServer::drop, "job"_a, "epoch"_a)
        .def("stats", &PyServer::stats)
        .def("chunks", &PyServer::chunks, "job"_a, "epoch"_a)
        .def("close", &PyServer::close);
    nb::module_::import_("atexit").attr("register")(nb::cpp_function(&PyServer::close_all));
}

}  // namespace inagg
