#include "torch/departures.h"

#include <atomic>
#include <mutex>

namespace gapless::torch_device {
namespace {

std::mutex g_mutex;
std::map<std::pair<std::string, std::string>, uint64_t> g_counts;
std::map<std::string, uint64_t> g_staged;
std::atomic<uint64_t> g_changes{0};

}  // namespace

void count_staged(const char* operation) {
  std::lock_guard lock(g_mutex);
  ++g_staged[operation];
}

std::map<std::string, uint64_t> staged() {
  std::lock_guard lock(g_mutex);
  return g_staged;
}

void count_departure(const std::string& operation, const std::string& reason) {
  std::lock_guard lock(g_mutex);
  ++g_counts[{operation, reason}];
  g_changes.fetch_add(1, std::memory_order_release);
}

std::map<std::pair<std::string, std::string>, uint64_t> departures() {
  std::lock_guard lock(g_mutex);
  return g_counts;
}

void reset_departures() {
  std::lock_guard lock(g_mutex);
  g_counts.clear();
  g_staged.clear();
  g_changes.fetch_add(1, std::memory_order_release);
}

uint64_t departure_changes() { return g_changes.load(std::memory_order_acquire); }

}  // namespace gapless::torch_device
