// SPDX-License-Identifier: Apache-2.0
//
// Single parts of the core, for tests: wire format, numerics, RTT estimator.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "engine/rtt.hpp"
#include "numerics/apart.hpp"
#include "numerics/numerics.hpp"
#include "wire/require.hpp"
#include "wire/wire.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace inagg {
namespace {

using NumpyFloats = nb::ndarray<nb::numpy, float, nb::ndim<1>>;

void define_wire(nb::module_& m) {
    nb::class_<Header>(m, "Header")
        .def(
            "__init__",
            [](Header* self, std::uint8_t kind, std::uint8_t rank, std::uint16_t job, std::uint8_t flags,
               std::uint16_t exponent, std::uint32_t epoch, std::uint32_t chunk, std::uint32_t checksum) {
                new (self) Header{static_cast<Kind>(kind),
                                  rank,
                                  job,
                                  Announcement::of(flags, exponent),
                                  epoch,
                                  chunk,
                                  checksum};
            },
            nb::kw_only(), "kind"_a, "rank"_a, "job"_a, "flags"_a, "exponent"_a, "epoch"_a, "chunk"_a,
            "checksum"_a)
        .def_prop_rw(
            "kind", [](const Header& self) { return static_cast<std::uint8_t>(self.kind); },
            [](Header& self, std::uint8_t kind) { self.kind = static_cast<Kind>(kind); })
        .def_rw("rank", &Header::rank)
        .def_rw("job", &Header::job)
        .def_prop_ro("flags", [](const Header& self) { return self.announced.flags; })
        .def_prop_ro("exponent", [](const Header& self) { return self.announced.exponent; })
        .def_prop_ro("flags_check", [](const Header& self) { return self.announced.flags_check; })
        .def_prop_ro("exponent_check", [](const Header& self) { return self.announced.exponent_check; })
        .def_rw("epoch", &Header::epoch)
        .def_rw("chunk", &Header::chunk)
        .def_rw("checksum", &Header::checksum)
        .def("encode",
             [](const Header& self) {
                 std::array<std::byte, HEADER_BYTES> out{};
                 encode(self, out);
                 return to_bytes(out);
             })
        .def_static(
            "decode",
            [](const nb::bytes& datagram) {
                const std::optional<Header> header = decode(as_span(datagram));
                if (!header) {
                    throw std::invalid_argument("not an inagg header");
                }
                return *header;
            },
            "datagram"_a);
    nb::dict constants;
    for (const p4::NamedConstant& constant : p4::ALL) {
        constants[constant.name] = constant.value;
    }
    constants["FLAG_SPECIAL"] = FLAG_SPECIAL;
    constants["FLAG_WIDE"] = FLAG_WIDE;
    constants["GREATEST_FINITE"] = GREATEST_FINITE;
    constants["EXPONENT_BIAS"] = EXPONENT_BIAS;
    m.attr("CONSTANTS") = constants;
}

// Checks that a block fits `words` words, before they are filled.
void require_fits(std::size_t elements, std::size_t room) {
    if (elements > room) {
        throw std::invalid_argument("the block has more elements than the words have lanes");
    }
}

template <typename Fill>
std::pair<nb::bytes, std::uint32_t> filled_words(const LaneFormat& format, std::size_t elements,
                                                 unsigned words, Fill fill) {
    require_fits(elements, format.block_elements(words));
    std::vector<std::byte> out(words_bytes(words));
    const std::uint32_t checksum = fill(std::span(out));
    return {to_bytes(out), checksum};
}

std::pair<NumpyFloats, std::uint32_t> py_dequantise(const nb::bytes& words, std::size_t elements,
                                                    std::uint16_t exponent, unsigned lane_bits,
                                                    unsigned workers, bool average) {
    const LaneFormat format(lane_bits, workers);
    require_fits(elements, words.size() / format.lane_bytes());
    if (!valid_exponent(exponent)) {
        throw std::invalid_argument("no block has this exponent");
    }
    auto* block = new std::vector<float>(elements);
    const nb::capsule owner(block,
                            [](void* memory) noexcept { delete static_cast<std::vector<float>*>(memory); });
    dequantise(format, exponent, as_span(words), average, *block);
    return {NumpyFloats(block->data(), {elements}, owner), lane_sum(format, as_span(words))};
}

FloatType half_type_of(const SummedArray& array) {
    const FloatType type = type_of(array);
    require(type != FloatType::float32, "the array must be of 16-bit floats");
    return type;
}

// Does the numerics of an engine to a whole array, block by block, with as many packet buffers as a window
// has.
class BlockRunner {
  public:
    BlockRunner(const FloatArray& array, std::uint16_t exponent, unsigned lane_bits, unsigned workers,
                unsigned words)
        : array_(as_span(array)),
          exponent_(exponent),
          format_(lane_bits, workers),
          packet_bytes_(words_bytes(words)),
          packets_(packet_bytes_ * WINDOW, std::byte{0x40}) {}

    void run(const std::string& step) {
        const bool average = step == "average";
        if (step == "exponent") {
            each([&](std::span<float> block, auto) { block_exponent(format_, block); });
        } else if (step == "quantise" || step == "stochastic") {
            const Rounding rounding{step == "stochastic", 1};
            each([&](std::span<float> block, std::span<std::byte> packet) {
                const auto first = static_cast<std::uint64_t>(block.data() - array_.data());
                quantise(format_, exponent_, block, NO_LIMIT, packet, rounding, first);
            });
        } else if (step == "dequantise" || average) {
            each([&](std::span<float> block, std::span<std::byte> packet) {
                checked_ += lane_sum(format_, packet);
                dequantise(format_, exponent_, packet, average, block);
            });
        } else {
            throw std::invalid_argument("there is no step " + step);
        }
    }

  private:
    static constexpr std::size_t WINDOW = 64;

    template <typename Step>
    void each(Step step) {
        const std::size_t size = packet_bytes_ / format_.lane_bytes();
        std::span<float> left = array_;
        for (std::size_t i = 0; !left.empty(); ++i) {
            const auto block = left.first(std::min(size, left.size()));
            step(block, std::span(packets_).subspan(i % WINDOW * packet_bytes_, packet_bytes_));
            left = left.subspan(block.size());
        }
    }

    std::span<float> array_;
    std::uint16_t exponent_;
    LaneFormat format_;
    std::size_t packet_bytes_;
    std::vector<std::byte> packets_;
    std::uint32_t checked_ = 0;
};

void define_numerics(nb::module_& m) {
    m.def("guard_bits", [](unsigned workers) { return LaneFormat(32, workers).guard_bits(); }, "workers"_a);
    m.def(
        "check_lanes", [](unsigned bits, unsigned workers) { LaneFormat(bits, workers); }, "bits"_a,
        "workers"_a);
    m.def(
        "block_elements",
        [](unsigned words, unsigned lane_bits) { return LaneFormat(lane_bits, 1).block_elements(words); },
        "words"_a, "lane_bits"_a);
    nb::class_<BlockExponent>(m, "BlockExponent")
        .def_ro("code", &BlockExponent::code)
        .def_ro("special", &BlockExponent::special)
        .def_ro("wide", &BlockExponent::wide)
        .def_ro("limit", &BlockExponent::limit);
    m.def(
        "block_exponent",
        [](const ConstFloatArray& block, unsigned lane_bits, unsigned workers, bool stochastic) {
            return block_exponent(LaneFormat(lane_bits, workers), as_span(block), {.stochastic = stochastic});
        },
        "block"_a.noconvert(), nb::kw_only(), "lane_bits"_a, "workers"_a, "stochastic"_a = false);
    m.def(
        "exponent_within",
        [](const ConstFloatArray& block, std::uint32_t limit, unsigned lane_bits, unsigned workers,
           bool stochastic) {
            return exponent_within(LaneFormat(lane_bits, workers), as_span(block), limit,
                                   {.stochastic = stochastic});
        },
        "block"_a.noconvert(), "limit"_a, nb::kw_only(), "lane_bits"_a, "workers"_a, "stochastic"_a = false);
    m.def(
        "quantise",
        [](const ConstFloatArray& block, std::uint16_t exponent, unsigned lane_bits, unsigned workers,
           unsigned words, std::optional<std::uint32_t> given_limit, std::optional<std::uint64_t> seed,
           std::uint64_t first_element) {
            const LaneFormat format(lane_bits, workers);
            const std::uint32_t limit = given_limit.value_or(block_exponent(format, as_span(block)).limit);
            const std::uint16_t least = exponent_within(format, as_span(block), limit, rounding(seed));
            if (!valid_exponent(exponent) || exponent < least) {
                throw std::invalid_argument("the exponent is not one for this block");
            }
            return filled_words(format, block.size(), words, [&](std::span<std::byte> out) {
                return quantise(format, exponent, as_span(block), limit, out, rounding(seed), first_element);
            });
        },
        "block"_a.noconvert(), nb::kw_only(), "exponent"_a, "lane_bits"_a, "workers"_a, "words"_a,
        "limit"_a = nb::none(), "seed"_a = nb::none(), "first_element"_a = 0);
    m.def(
        "residual",
        [](const ConstFloatArray& block, const nb::bytes& words, std::uint16_t exponent, unsigned lane_bits,
           unsigned workers, const FloatArray& out, std::optional<std::uint32_t> limit) {
            const LaneFormat format(lane_bits, workers);
            require_fits(block.size(), std::min(words.size() / format.lane_bytes(), out.size()));
            residual(format, exponent, as_span(block),
                     limit.value_or(block_exponent(format, as_span(block)).limit), as_span(words),
                     as_span(out));
        },
        "block"_a.noconvert(), "words"_a, nb::kw_only(), "exponent"_a, "lane_bits"_a, "workers"_a,
        "out"_a.noconvert(), "limit"_a = nb::none());
    m.def("dequantise", &py_dequantise, "words"_a, nb::kw_only(), "elements"_a, "exponent"_a, "lane_bits"_a,
          "workers"_a, "average"_a = false);
    m.def(
        "class_lanes",
        [](const ConstFloatArray& block, unsigned lane_bits, unsigned workers, unsigned words) {
            const LaneFormat format(lane_bits, workers);
            return filled_words(format.class_format(), block.size(), words, [&](std::span<std::byte> out) {
                return pack_classes(format, as_span(block), out);
            });
        },
        "block"_a.noconvert(), nb::kw_only(), "lane_bits"_a, "workers"_a, "words"_a);
    m.def(
        "apply_classes",
        [](const FloatArray& block, const nb::bytes& words, unsigned lane_bits, unsigned workers) {
            const LaneFormat format(lane_bits, workers);
            require_fits(block.size(), words.size() / format.class_format().lane_bytes());
            apply_classes(format, as_span(words), as_span(block));
            return lane_sum(format.class_format(), as_span(words));
        },
        "block"_a.noconvert(), "words"_a, nb::kw_only(), "lane_bits"_a, "workers"_a);
    m.def(
        "add_outliers",
        [](const FloatArray& block, const nb::bytes& words, std::uint16_t exponent,
           const nb::bytes& outlier_words, std::uint16_t outlier_exponent, unsigned lane_bits,
           unsigned workers, bool average) {
            const LaneFormat format(lane_bits, workers);
            require_fits(block.size(), std::min(words.size(), outlier_words.size()) / format.lane_bytes());
            add_outliers(format, {exponent, as_span(words)}, {outlier_exponent, as_span(outlier_words)},
                         average, as_span(block));
        },
        "block"_a.noconvert(), "words"_a, nb::kw_only(), "exponent"_a, "outlier_words"_a,
        "outlier_exponent"_a, "lane_bits"_a, "workers"_a, "average"_a = false);
    m.def(
        "run_blocks",
        [](const FloatArray& array, const std::string& step, std::uint16_t exponent, unsigned lane_bits,
           unsigned workers, unsigned words, unsigned passes) {
            BlockRunner runner(array, exponent, lane_bits, workers, words);
            for (unsigned pass = 0; pass < passes; ++pass) {
                runner.run(step);
            }
        },
        "array"_a.noconvert(), "step"_a, nb::kw_only(), "exponent"_a, "lane_bits"_a, "workers"_a, "words"_a,
        "passes"_a);
    m.def(
        "widen",
        [](const SummedArray& halves, const FloatArray& floats) {
            require_fits(halves.size(), floats.size());
            widen(half_type_of(halves), memory_of(halves), as_span(floats).first(halves.size()));
        },
        "halves"_a.noconvert(), "floats"_a.noconvert());
    m.def(
        "narrow",
        [](const ConstFloatArray& floats, const SummedArray& halves) {
            require_fits(floats.size(), halves.size());
            narrow(half_type_of(halves), as_span(floats), memory_of(halves));
        },
        "floats"_a.noconvert(), "halves"_a.noconvert());
    m.def("available_kernels", &available_kernels);
    m.def("use_kernels", &use_kernels, "name"_a);
}

void define_rtt(nb::module_& m) {
    nb::class_<RttEstimator>(m, "RttEstimator")
        .def(
            "__init__",
            [](RttEstimator* self, double rto_initial, double rto_min, double rto_max) {
                const RetransmissionPolicy policy{
                    .rto_initial = rto_initial, .rto_min = rto_min, .rto_max = rto_max};
                policy.validate();
                new (self) RttEstimator(policy);
            },
            nb::kw_only(), "rto_initial_s"_a = 0.1, "rto_min_s"_a = 0.001, "rto_max_s"_a = 1.0)
        .def("measure", &RttEstimator::measure, "rtt_s"_a, "packets"_a = 1)
        .def("sample", &RttEstimator::sample, "rtt_s"_a)
        .def("timeout", &RttEstimator::timeout, "probes"_a)
        .def_prop_ro("rto_s", &RttEstimator::rto)
        .def_prop_ro("srtt_s", &RttEstimator::srtt)
        .def_prop_ro("rttvar_s", &RttEstimator::rttvar);
}

}  // namespace

void define_parts(nb::module_& m) {
    define_wire(m);
    define_numerics(m);
    define_rtt(m);
}

}  // namespace inagg
