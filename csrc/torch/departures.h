// What to improve, counted: departures from the asynchronous path, and operators by host copies.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace gapless::torch_device {

// An operator whose operands went through host copies, since only copies reach the device's memory:
// what a driver still needs a program for.
void count_staged(const char* operation);
std::map<std::string, uint64_t> staged();

void count_departure(const std::string& operation, const std::string& reason);

// Counts since the start of the process, or the last reset.
std::map<std::pair<std::string, std::string>, uint64_t> departures();
void reset_departures();
// Changes with every departure and every reset: while it is the same, so are the counts.
uint64_t departure_changes();

}  // namespace gapless::torch_device
