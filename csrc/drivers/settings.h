// Settings from the environment, for drivers and the runtime. Each reader throws
// std::invalid_argument with the value, the limit and the remedy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gapless::settings {

// The variable's text; nothing where it is not set or empty.
std::optional<std::string> text(const char* name);

// A whole number from `least` to `most`.
int64_t whole(const char* name, int64_t otherwise, int64_t least, int64_t most);

// A number that is at least 0, such as microseconds or gigabytes per second.
double number(const char* name, double otherwise);

// Bytes, with an optional K, M, G or T (powers of 1024), such as 4G.
uint64_t bytes(const char* name, uint64_t otherwise);

}  // namespace gapless::settings
