#include "torch/departures.h"

#include <mutex>

namespace gapless::torch_device {
namespace {

std::mutex g_mutex;
std::map<std::pair<std::string, std::string>, uint64_t> g_counts;

}  // namespace

void count_departure(const std::string& operation, const std::string& reason) {
  std::lock_guard lock(g_mutex);
  ++g_counts[{operation, reason}];
}

std::map<std::pair<std::string, std::string>, uint64_t> departures() {
  std::lock_guard lock(g_mutex);
  return g_counts;
}

void reset_departures() {
  std::lock_guard lock(g_mutex);
  g_counts.clear();
}

}  // namespace gapless::torch_device
