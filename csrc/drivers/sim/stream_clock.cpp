#include "drivers/sim/stream_clock.h"

#include <time.h>

#include <algorithm>

namespace gapless::sim {
namespace {

// A sleep ends some tens of microseconds late; for less the thread asks the clock.
constexpr int64_t kSpinNs = 30'000;

int64_t clock_ns(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
}

void sleep_until(int64_t deadline_ns) {
  while (true) {
    const int64_t left_ns = deadline_ns - now_ns();
    if (left_ns <= 0) return;
    if (left_ns < kSpinNs) continue;
    const int64_t wake_ns = deadline_ns - kSpinNs / 2;
    const timespec wake{wake_ns / 1'000'000'000, wake_ns % 1'000'000'000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, nullptr);
  }
}

}  // namespace

int64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }

void StreamClock::begin(const gapless_work& work, int64_t launch_ns, int64_t cost_ns,
                        bool computes) {
  start_ns_ = std::max({free_at_ns_, work.ready_ns, work.submitted_ns + launch_ns});
  cost_ns_ = cost_ns;
  computes_ = computes && work.operators > 0;
  if (computes_) cpu_start_ns_ = clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

gapless_work_times StreamClock::end() {
  const int64_t computed_ns = computes_ ? clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_start_ns_ : 0;
  const int64_t end_ns = start_ns_ + std::max(cost_ns_, computed_ns);
  sleep_until(end_ns);
  free_at_ns_ = end_ns;
  return {start_ns_, end_ns};
}

}  // namespace gapless::sim
