// SPDX-License-Identifier: Apache-2.0
//
// Cells of counters, registers and meters as P4Runtime's messages have them: protobuf's Python takes up to
// 0.5 ms for each. The result of all functions is 0 or -errno (program.h).
#ifndef INAGG_SWITCH_PORTS_ARRAYS_HPP
#define INAGG_SWITCH_PORTS_ARRAYS_HPP

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/program.h"

namespace inagg::ports {

// Indices of one array.
struct Cells {
    uint32_t array;
    uint64_t first;
    uint64_t count;
};

// A ReadResponse, encoded, with an entity for each cell. The program is locked for a few at a time.
int counter_response(const isw_api* api, void* handle, Cells cells, std::string& response);
int meter_response(const isw_api* api, void* handle, Cells cells, std::string& response);
int register_response(const isw_api* api, void* handle, Cells cells, size_t value_bytes,
                      std::string& response);

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_ARRAYS_HPP
