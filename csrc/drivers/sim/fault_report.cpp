#include "drivers/sim/fault_report.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

namespace gapless::sim {
namespace {

constexpr int kMaxRanges = 64;

struct Range {
  int device;
  const char* begin;
  const char* end;
};

Range g_ranges[kMaxRanges];
std::atomic<int> g_range_count{0};
struct sigaction g_before;
thread_local const char* t_executing = nullptr;

// Only what is safe in a signal handler: no allocation, no locks.
void say(const Range& range, const char* address) {
  char text[400];
  const char* work = t_executing ? t_executing : "code outside any queued work";
  const int length =
      std::snprintf(text, sizeof(text),
                    "gapless sim: host code touched memory of gapless:%d (byte %llu of it) in %s. "
                    "A device's memory is reached by queued work and copies only.\n",
                    range.device, static_cast<unsigned long long>(address - range.begin), work);
  if (length > 0) {
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text, std::strlen(text));
  }
}

void on_fault(int, siginfo_t* info, void*) {
  const char* address = static_cast<const char*>(info->si_addr);
  for (int i = 0; i < g_range_count.load(std::memory_order_acquire); ++i) {
    if (address >= g_ranges[i].begin && address < g_ranges[i].end) say(g_ranges[i], address);
  }
  // The instruction faults again, and whoever handled faults before gets it.
  sigaction(SIGSEGV, &g_before, nullptr);
}

}  // namespace

void report_faults_in(int device, const void* address, uint64_t bytes) {
  const int index = g_range_count.load(std::memory_order_relaxed);
  if (index == kMaxRanges) return;
  const char* begin = static_cast<const char*>(address);
  g_ranges[index] = {device, begin, begin + bytes};
  g_range_count.store(index + 1, std::memory_order_release);
  if (index > 0) return;
  struct sigaction action;
  std::memset(&action, 0, sizeof(action));
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &g_before);
}

void set_executing(const char* work_name) { t_executing = work_name; }

}  // namespace gapless::sim
