// SPDX-License-Identifier: Apache-2.0
#include "ports/control/arrays.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include "ports/control/control.hpp"
#include "ports/control/wire.hpp"

namespace inagg::ports {
namespace {

// Members of p4.v1.Entity.
enum class Kind : uint32_t { meter = 5, counter = 7, reg = 11 };

// Counter, meter and register entries have the same field numbers: id 1, index 2, data 3. Index and data are
// written even if their values are 0; without `data` there is no data field.
class Response {
  public:
    Response(Kind kind, uint32_t array, std::string& response)
        : kind_(kind), array_(array), response_(response) {}

    void add(uint64_t index, const std::string* data) {
        inner_.clear();
        wire::put(inner_, 1, index);
        outer_.clear();
        wire::put(outer_, 1, array_);
        wire::put(outer_, 2, inner_);
        if (data != nullptr) wire::put(outer_, 3, *data);
        inner_.clear();
        wire::put(inner_, static_cast<uint32_t>(kind_), outer_);
        wire::put(response_, 1, inner_);
    }

  private:
    Kind kind_;
    uint32_t array_;
    std::string& response_;
    std::string inner_;
    std::string outer_;
};

// Reads a few cells at a time with the program locked, and encodes them with the program unlocked.
template <class Cell, class Read, class Write>
int each(const isw_api* api, void* handle, Cells cells, Read read, Write write) {
    std::vector<Cell> some(std::min<uint64_t>(cells.count, kCellsAtATime));
    const uint64_t end = cells.first + cells.count;
    for (uint64_t index = cells.first; index < end;) {
        const uint64_t count = std::min<uint64_t>(end - index, some.size());
        {
            const ProgramLock lock(api, handle);
            for (uint64_t i = 0; i < count; ++i) {
                const int result = read(index + i, some[i]);
                if (result != 0) return result;
            }
        }
        for (uint64_t i = 0; i < count; ++i) write(index + i, some[i]);
        index += count;
    }
    return 0;
}

}  // namespace

int counter_response(const isw_api* api, void* handle, Cells cells, std::string& response) {
    Response out(Kind::counter, cells.array, response);
    std::string data;
    return each<Count>(
        api, handle, cells,
        [&](uint64_t index, Count& cell) {
            return api->counter_read(handle, cells.array, index, &cell.packets, &cell.bytes);
        },
        [&](uint64_t index, const Count& cell) {
            data.clear();
            wire::put(data, 1, cell.bytes);
            wire::put(data, 2, cell.packets);
            out.add(index, &data);
        });
}

int meter_response(const isw_api* api, void* handle, Cells cells, std::string& response) {
    Response out(Kind::meter, cells.array, response);
    std::string data;
    return each<isw_meter>(
        api, handle, cells,
        [&](uint64_t index, isw_meter& cell) { return api->meter_read(handle, cells.array, index, &cell); },
        [&](uint64_t index, const isw_meter& cell) {
            data.clear();
            wire::put(data, 1, cell.cir);
            wire::put(data, 2, cell.cburst);
            wire::put(data, 3, cell.pir);
            wire::put(data, 4, cell.pburst);
            out.add(index, cell.is_set != 0 ? &data : nullptr);
        });
}

int register_response(const isw_api* api, void* handle, Cells cells, size_t value_bytes,
                      std::string& response) {
    Response out(Kind::reg, cells.array, response);
    std::string data;
    return each<std::vector<uint8_t>>(
        api, handle, cells,
        [&](uint64_t index, std::vector<uint8_t>& cell) {
            cell.resize(value_bytes);
            return api->register_read(handle, cells.array, index, cell.data());
        },
        [&](uint64_t index, const std::vector<uint8_t>& cell) {
            data.clear();
            // P4Data.bitstring
            wire::put(data, 1, wire::canonical({reinterpret_cast<const char*>(cell.data()), cell.size()}));
            out.add(index, &data);
        });
}

}  // namespace inagg::ports
