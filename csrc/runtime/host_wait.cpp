#include "runtime/host_wait.h"

#include <time.h>

#include <algorithm>

#include "runtime/work.h"

namespace gapless {
namespace {

constexpr int64_t kSpin_ns = 20'000;
constexpr int64_t kShortestSleep_ns = 50'000;
constexpr int64_t kLongestPoll_ns = 500'000;
constexpr int64_t kTick_ns = 50'000'000;

void sleep_for(int64_t ns) {
  const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
  nanosleep(&time, nullptr);  // a signal may cut it short, which does no harm
}

}  // namespace

void HostWait::until(const std::function<bool()>& done, void (*tick)()) {
  const int64_t start_ns = now_ns();
  int64_t waited_ns = 0;
  // What is nearly done is not worth a sleep.
  while (waited_ns < kSpin_ns) {
    if (done()) {
      history_.note(waited_ns);
      return;
    }
    __builtin_ia32_pause();
    waited_ns = now_ns() - start_ns;
  }
  const int64_t usual_ns = expected_ns();
  int64_t next_tick_ns = kTick_ns;
  bool overslept = false;
  while (!done()) {
    const bool predicted = waited_ns < usual_ns * 3 / 4;
    const int64_t sleep_ns = predicted ? usual_ns * 3 / 4 - waited_ns
                                       : std::clamp(std::max(usual_ns, waited_ns) / 32,
                                                    kShortestSleep_ns, kLongestPoll_ns);
    sleep_for(std::min(sleep_ns, next_tick_ns - waited_ns));
    waited_ns = now_ns() - start_ns;
    overslept = predicted && done();
    if (waited_ns < next_tick_ns) continue;
    next_tick_ns = waited_ns + kTick_ns;
    if (tick) tick();
  }
  // Who slept too long does not know by how much.
  history_.note(overslept ? usual_ns / 2 : waited_ns);
}

}  // namespace gapless
