// How the host waits for a device: it sleeps for most of the time that waits take, then asks.
//
// To be woken, the host would need the device's thread to make a system call at the end of every
// step, on the device's time. Measured on two virtual cores with steps of 28 ms: that call and what
// follows cost the device 30 to 40 us per step, and in 3 of 100 steps 750 us, since the hypervisor
// runs a core that is woken in the place of the one that woke it. Asking costs the device nothing.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>

namespace gapless {

// The last waits for a stream, also those that were over at once. Waits of several kinds may take
// turns, such as for a step's result and for its inputs to be read: what is sure to pass is the
// shortest of them. Races between waiters do no harm.
class WaitHistory {
 public:
  void note(int64_t ns) {
    const uint32_t place = next_.fetch_add(1, std::memory_order_relaxed) % kWaits;
    last_ns_[place].store(ns, std::memory_order_relaxed);
  }

  int64_t shortest_ns() const {
    int64_t shortest = last_ns_[0].load(std::memory_order_relaxed);
    for (const auto& each : last_ns_) {
      shortest = std::min(shortest, each.load(std::memory_order_relaxed));
    }
    return shortest;
  }

 private:
  static constexpr uint32_t kWaits = 4;
  std::array<std::atomic<int64_t>, kWaits> last_ns_{};
  std::atomic<uint32_t> next_{0};
};

class HostWait {
 public:
  // Returns when `done` says so: within 1/32 of the wait, at least 0.05 and at most 0.5 ms, of the
  // moment, unless the wait is less than 3/4 of the shortest of the last ones. Calls `tick` about
  // every 50 ms.
  void until(const std::function<bool()>& done, void (*tick)());
  // How long a wait is expected to be at least; most of that is slept through.
  int64_t expected_ns() const { return history_.shortest_ns(); }

 private:
  WaitHistory history_;
};

}  // namespace gapless
