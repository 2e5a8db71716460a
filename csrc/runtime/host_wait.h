// How the host waits for a device: it sleeps for about as long as the last waits took, then asks.
//
// To be woken, the host would need the device's thread to make a system call at the end of every
// step, on the device's time. Measured on two virtual cores with steps of 28 ms: that call and what
// follows cost the device 30 to 40 us per step, and in 3 of 100 steps 750 us, since the hypervisor
// runs a core that is woken in the place of the one that woke it. Asking costs the device nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace gapless {

class HostWait {
 public:
  // Returns when `done` says so: within 1/32 of the wait, at least 0.05 and at most 0.5 ms, of the
  // moment, unless the wait is less than 3/4 of the usual. Calls `tick` about every 50 ms.
  void until(const std::function<bool()>& done, void (*tick)());

 private:
  std::atomic<int64_t> usual_ns_{
      0};  // follows the shorter of the last waits; races between waiters do no harm
};

}  // namespace gapless
