// Departures from the asynchronous path, counted by operation and reason.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace gapless::torch_device {

void count_departure(const std::string& operation, const std::string& reason);

// Counts since the start of the process, or the last reset.
std::map<std::pair<std::string, std::string>, uint64_t> departures();
void reset_departures();

}  // namespace gapless::torch_device
