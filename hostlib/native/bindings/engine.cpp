// SPDX-License-Identifier: Apache-2.0
//
// inagg._core.Engine.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <vector>

#include "bindings/bindings.hpp"
#include "transport/udp_socket.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace inagg {
namespace {

// An engine, driven from Python in virtual time. It keeps the arrays given to it alive.
class PyEngine {
  public:
    explicit PyEngine(const EngineConfig& config) : config_(config), engine_(config) {
        for (unsigned thread = 0; thread < config.packet_threads; ++thread) {
            departures_.emplace_back(thread);
        }
    }

    Ticket submit(const SummedArray& array, unsigned lane_bits, bool average,
                  std::optional<std::uint64_t> stochastic, std::uint32_t context,
                  const std::optional<FloatArray>& residual, bool filled, double now) {
        const Request request{floats_of(array, stochastic, residual), lane_bits, average, context, filled};
        config_.validate(request);
        check_alive();
        const Ticket ticket = ++last_ticket_;
        engine_.submit(ticket, request, now);
        alive_.emplace(ticket, KeptAlive{.array = array, .residual = residual});
        return ticket;
    }

    void filled(Ticket ticket, double now) {
        require_array(alive_, ticket);
        check_alive();
        engine_.filled(ticket, now);
    }

    Ticket submit_staged(PyStaging& staging, bool average, std::uint32_t context, double now) {
        const Request request = staging.request(average, context);
        config_.validate(request);
        check_alive();
        const Ticket ticket = ++last_ticket_;
        engine_.submit(ticket, request, now);
        staging->submitted(this, ticket);
        alive_.emplace(ticket, KeptAlive{.staging = nb::find(staging)});
        return ticket;
    }

    void scanned(PyStaging& staging, const PyStaging::Blocks& blocks, const PyStaging::Rows& elements,
                 double now) {
        const Ticket ticket = staging->ticket_at(this);
        staging->scanned({blocks.data(), blocks.size()}, as_span(elements, blocks));
        check_alive();
        engine_.filled(ticket, now);
    }

    void packed(PyStaging& staging, std::size_t blocks, double now) {
        const Ticket ticket = staging->ticket_at(this);
        staging->packed(blocks);
        check_alive();
        engine_.packed(ticket, blocks, now);
    }

    std::pair<std::size_t, std::size_t> progress(PyStaging& staging) {
        staging->ticket_at(this);
        engine_.report_progress();
        return {staging->progress.known, staging->progress.summed};
    }

    nb::object special_sums(PyStaging& staging) {
        staging->ticket_at(this);
        engine_.report_progress();
        return to_arrays(staging->special_sums(), staging->block_elements());
    }

    nb::object outlier_residuals(PyStaging& staging) {
        staging->ticket_at(this);
        engine_.report_progress();
        return to_arrays(staging->outlier_residuals(), staging->block_elements());
    }

    void receive(const nb::bytes& message, double now, std::optional<std::size_t> datagram_bytes,
                 bool congested) {
        if (datagram_bytes == 0U) {
            throw nb::value_error("a datagram has one byte at least");
        }
        engine_.receive(as_span(message), datagram_bytes.value_or(MAX_DATAGRAM), now, congested);
    }

    std::vector<nb::bytes> to_send(double now, std::optional<std::size_t> limit) {
        engine_.advance(now);
        std::vector<nb::bytes> out;
        std::vector<std::byte> memory(MAX_DATAGRAM);
        for (unsigned thread = 0; thread < departures_.size(); ++thread) {
            while (engine_.anything_to_send(thread) && out.size() < limit.value_or(SIZE_MAX)) {
                Departures& departures = departures_[thread];
                engine_.choose(memory, BATCH, departures);
                engine_.make(departures);
                const auto datagrams = departures.datagrams();
                const std::size_t taken = std::min(datagrams.size(), limit.value_or(SIZE_MAX) - out.size());
                std::transform(datagrams.begin(), datagrams.begin() + taken, std::back_inserter(out),
                               [](const Outgoing& packet) { return to_bytes(packet.datagram); });
                engine_.sent(departures, taken, now);
            }
        }
        return out;
    }

    std::vector<Ticket> completed() {
        engine_.report_progress();
        std::vector<Ticket> out;
        while (const std::optional<Ticket> ticket = engine_.next_completion()) {
            const auto kept = alive_.extract(*ticket);  // see PyTransport::let_go_of
            out.push_back(*ticket);
        }
        return out;
    }

    void freeze() { engine_.freeze(); }
    std::vector<std::uint32_t> next_chunks() const { return engine_.next_chunks(); }
    nb::bytes kept(std::uint32_t chunk) const { return to_bytes(engine_.kept(chunk)); }
    bool fill(const nb::bytes& result, double now) { return engine_.fill(as_span(result), now); }
    void go_on(const EngineConfig& config, double now) {
        engine_.go_on(config, now);
        config_ = config;
    }

    bool outlasts_silence() const { return config_.outlasts_silence; }
    void fail(const std::string& reason) { engine_.fail(FailureCode::failed, reason); }
    std::optional<double> deadline() const { return engine_.deadline(); }
    nb::object failure() const { return failure_object(engine_.failure(), config_); }
    nb::dict stats() const { return to_dict(engine_.stats()); }

  private:
    void check_alive() const {
        if (engine_.failure()) {
            raise_engine_error(*engine_.failure(), config_);
        }
    }

    EngineConfig config_;
    Engine engine_;
    std::vector<Departures> departures_;
    Ticket last_ticket_ = 0;
    std::map<Ticket, KeptAlive> alive_;
};

EngineConfig config_of(const JobShape& job, unsigned rank, std::optional<unsigned> member, unsigned ways,
                       bool ways_apart, unsigned threads, unsigned packet_threads,
                       std::optional<unsigned> home, const RetransmissionPolicy& policy,
                       bool outlasts_silence) {
    EngineConfig config{.job = job,
                        .rank = rank,
                        .member = member.value_or(rank),
                        .ways = {job.slots, ways},
                        .ways_apart = ways_apart,
                        .threads = threads,
                        .packet_threads = packet_threads,
                        .home = home,
                        .policy = policy,
                        .keeps_results = true,
                        .outlasts_silence = outlasts_silence};
    config.validate();
    return config;
}

}  // namespace

void define_engine(nb::module_& m) {
    nb::class_<PyEngine>(m, "Engine")
        .def(
            "__init__",
            [](PyEngine* self, const JobShape& job, unsigned rank, std::optional<unsigned> member,
               unsigned ways, bool ways_apart, unsigned threads, unsigned packet_threads,
               std::optional<unsigned> home, const RetransmissionPolicy& policy, bool outlasts_silence) {
                new (self) PyEngine(config_of(job, rank, member, ways, ways_apart, threads, packet_threads,
                                              home, policy, outlasts_silence));
            },
            "job"_a, nb::kw_only(), "rank"_a, "member"_a = nb::none(), "ways"_a = 1, "ways_apart"_a = false,
            "threads"_a = 1, "packet_threads"_a = 1, "home"_a = nb::none(),
            "policy"_a = RetransmissionPolicy{}, "outlasts_silence"_a = false)
        .def("submit", &PyEngine::submit, "array"_a.noconvert(), nb::kw_only(), "lane_bits"_a = 32,
             "average"_a = false, "stochastic"_a = nb::none(), "context"_a = 0,
             "residual"_a.noconvert() = nb::none(), "filled"_a = true, "now"_a = 0.0)
        .def("filled", &PyEngine::filled, "ticket"_a, nb::kw_only(), "now"_a = 0.0)
        .def("submit_staged", &PyEngine::submit_staged, "staging"_a, nb::kw_only(), "average"_a = false,
             "context"_a = 0, "now"_a = 0.0)
        .def("scanned", &PyEngine::scanned, "staging"_a, "special_blocks"_a.noconvert(),
             "special_elements"_a.noconvert(), nb::kw_only(), "now"_a = 0.0)
        .def("packed", &PyEngine::packed, "staging"_a, "blocks"_a, nb::kw_only(), "now"_a = 0.0)
        .def("progress", &PyEngine::progress, "staging"_a)
        .def("special_sums", &PyEngine::special_sums, "staging"_a)
        .def("outlier_residuals", &PyEngine::outlier_residuals, "staging"_a)
        .def("receive", &PyEngine::receive, "message"_a, "now"_a, nb::kw_only(),
             "datagram_bytes"_a = nb::none(), "congested"_a = false)
        .def("to_send", &PyEngine::to_send, "now"_a, "limit"_a = nb::none())
        .def("deadline", &PyEngine::deadline)
        .def("completed", &PyEngine::completed)
        .def("freeze", &PyEngine::freeze)
        .def("next_chunks", &PyEngine::next_chunks)
        .def("kept", &PyEngine::kept, "chunk"_a)
        .def("fill", &PyEngine::fill, "result"_a, "now"_a)
        .def(
            "go_on",
            [](PyEngine& self, const JobShape& job, unsigned rank, std::optional<unsigned> member,
               unsigned ways, bool ways_apart, unsigned threads, unsigned packet_threads,
               std::optional<unsigned> home, const RetransmissionPolicy& policy, double now) {
                self.go_on(config_of(job, rank, member, ways, ways_apart, threads, packet_threads, home,
                                     policy, self.outlasts_silence()),
                           now);
            },
            "job"_a, nb::kw_only(), "rank"_a, "member"_a = nb::none(), "ways"_a = 1, "ways_apart"_a = false,
            "threads"_a = 1, "packet_threads"_a = 1, "home"_a = nb::none(),
            "policy"_a = RetransmissionPolicy{}, "now"_a = 0.0)
        .def("fail", &PyEngine::fail, "reason"_a)
        .def_prop_ro("failure", &PyEngine::failure)
        .def_prop_ro("stats", &PyEngine::stats);
}

}  // namespace inagg
