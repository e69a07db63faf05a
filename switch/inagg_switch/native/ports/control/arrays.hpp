// SPDX-License-Identifier: Apache-2.0
//
// Reads cells of counters, registers and meters into encoded P4Runtime messages. protobuf's Python
// implementation takes up to 0.5 ms for each cell. Functions return 0 or -errno (program.h).
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

// Encodes a ReadResponse with an entity for each cell. The program is locked for a few cells at a time.
int counter_response(const isw_api* api, void* handle, Cells cells, std::string& response);
int meter_response(const isw_api* api, void* handle, Cells cells, std::string& response);
int register_response(const isw_api* api, void* handle, Cells cells, size_t value_bytes,
                      std::string& response);

}  // namespace inagg::ports

#endif  // INAGG_SWITCH_PORTS_ARRAYS_HPP
