#include "drivers/settings.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

namespace gapless::settings {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& value, const std::string& remedy) {
  throw std::invalid_argument(std::string(name) + "=" + value + ": " + remedy);
}

}  // namespace

std::optional<std::string> text(const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value) return std::nullopt;
  return value;
}

int64_t whole(const char* name, int64_t otherwise, int64_t least, int64_t most) {
  const auto value = text(name);
  if (!value) return otherwise;
  int64_t parsed = 0;
  const char* end = value->data() + value->size();
  const auto [stopped, error] = std::from_chars(value->data(), end, parsed);
  if (error != std::errc() || stopped != end || parsed < least || parsed > most) {
    refuse(name, *value,
           "give a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return parsed;
}

double number(const char* name, double otherwise) {
  const auto value = text(name);
  if (!value) return otherwise;
  char* end = nullptr;
  const double parsed = std::strtod(value->c_str(), &end);
  if (*end || end == value->c_str() || !std::isfinite(parsed) || parsed < 0) {
    refuse(name, *value, "give a number that is at least 0");
  }
  return parsed;
}

uint64_t bytes(const char* name, uint64_t otherwise) {
  const auto value = text(name);
  if (!value) return otherwise;
  char* end = nullptr;
  const double parsed = std::strtod(value->c_str(), &end);
  std::string unit(end);
  if (!unit.empty() && (unit.back() == 'B' || unit.back() == 'b')) unit.pop_back();
  if (!unit.empty() && unit.back() == 'i') unit.pop_back();
  static const std::string kUnits = "KMGT";
  const size_t at = unit.size() == 1 ? kUnits.find(unit[0]) : std::string::npos;
  const bool known = unit.empty() || at != std::string::npos;
  if (end == value->c_str() || !known || !std::isfinite(parsed) || parsed <= 0) {
    refuse(name, *value, "give bytes, or a number with K, M, G or T, such as 4G");
  }
  const int steps = unit.empty() ? 0 : static_cast<int>(at) + 1;
  return static_cast<uint64_t>(std::ldexp(parsed, 10 * steps));
}

}  // namespace gapless::settings
