#include "drivers/cpu/cores.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <set>
#include <stdexcept>

namespace gapless::cpu {
namespace {

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

std::string as_text(const std::vector<int>& cores) {
  std::string text;
  for (size_t i = 0; i < cores.size(); ++i) {
    size_t j = i;
    while (j + 1 < cores.size() && cores[j + 1] == cores[j] + 1) ++j;
    if (!text.empty()) text += ",";
    text += std::to_string(cores[i]);
    if (j > i) text += "-" + std::to_string(cores[j]);
    i = j;
  }
  return text;
}

std::optional<int> as_number(std::string_view text) {
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

[[noreturn]] void refuse(const std::string& value, const std::vector<int>& allowed) {
  throw std::invalid_argument("GAPLESS_DEVICE_CORES=" + value + ": this process may run on " +
                              std::to_string(allowed.size()) + " core(s), " + as_text(allowed) +
                              "; give a count from 1 to " + std::to_string(allowed.size()) +
                              ", or a list of those cores such as " +
                              std::to_string(allowed.front()) + "-" +
                              std::to_string(allowed.back()));
}

std::vector<int> parse_list(const std::string& value, const std::vector<int>& allowed) {
  std::set<int> wanted;
  for (size_t at = 0; at <= value.size();) {
    size_t comma = std::min(value.find(',', at), value.size());
    std::string_view part(value.data() + at, comma - at);
    size_t dash = part.find('-');
    auto first = as_number(part.substr(0, dash));
    auto last = dash == std::string_view::npos ? first : as_number(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first) refuse(value, allowed);
    for (int core = *first; core <= *last; ++core) {
      if (!std::binary_search(allowed.begin(), allowed.end(), core)) refuse(value, allowed);
      wanted.insert(core);
    }
    at = comma + 1;
  }
  return {wanted.begin(), wanted.end()};
}

}  // namespace

CorePlan plan_cores() {
  const auto allowed = allowed_cores();
  const char* set = std::getenv("GAPLESS_DEVICE_CORES");
  const std::string value = set ? set : "";
  CorePlan plan;
  size_t count = std::max<size_t>(1, allowed.size() - 1);
  if (value.empty()) {
    plan.reason = allowed.size() == 1
                      ? "only one core is allowed, so the host and the device share it"
                      : "by default the host keeps one core and the device takes the others";
  } else if (auto number = as_number(value)) {
    if (*number < 1 || static_cast<size_t>(*number) > allowed.size()) refuse(value, allowed);
    count = static_cast<size_t>(*number);
    plan.reason = "GAPLESS_DEVICE_CORES=" + value + " asks for that many cores";
  } else {
    plan.device_cores = parse_list(value, allowed);
    plan.reason = "GAPLESS_DEVICE_CORES=" + value + " names them";
  }
  // The last cores: core 0 takes most interrupts, which belong to the host.
  if (plan.device_cores.empty()) plan.device_cores.assign(allowed.end() - count, allowed.end());
  std::set_difference(allowed.begin(), allowed.end(), plan.device_cores.begin(),
                      plan.device_cores.end(), std::back_inserter(plan.host_cores));
  if (plan.host_cores.empty()) plan.host_cores = allowed;
  return plan;
}

}  // namespace gapless::cpu
