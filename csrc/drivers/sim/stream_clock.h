// The virtual time of one simulated stream, kept by its thread.
#pragma once

#include <cstdint>

#include "drivers/driver.h"

namespace gapless::sim {

int64_t now_ns();

class StreamClock {
 public:
  // The earliest start of the work, with the model's time for it. `computes`: its operators are
  // executed.
  void begin(const gapless_work& work, int64_t launch_ns, int64_t cost_ns, bool computes);
  // More time for the work under way: a copy.
  void charge(int64_t ns) { cost_ns_ += ns; }
  // Blocks until the work's virtual end. Time that the host computed beyond the model is charged;
  // time in which the simulator was merely late is not.
  gapless_work_times end();

 private:
  int64_t free_at_ns_ = 0;  // the virtual end of the work before
  int64_t start_ns_ = 0;
  int64_t cost_ns_ = 0;
  bool computes_ = false;
  int64_t cpu_start_ns_ = 0;
};

}  // namespace gapless::sim
