// What things cost on the simulated device.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "drivers/driver.h"

namespace gapless::sim {

struct Model {
  int devices = 1;
  uint64_t memory_bytes = 0;  // per device
  bool exact_numerics = true;
  double launch_us = 0;  // from the submit to the earliest start
  double op_us = 0;      // of every operator, beside its memory traffic and arithmetic
  double memory_gb_per_s = 0;
  double tflops = 0;
  double copy_latency_us = 0;
  double copy_gb_per_s = 0;
  double peer_gb_per_s = 0;
  std::unordered_map<std::string, double> work_us;  // stated times, by the work's name

  // Reads GAPLESS_SIM_* and GAPLESS_NUM_DEVICES. Throws std::invalid_argument.
  static Model from_environment();

  int64_t work_ns(const gapless_work& work) const;
  int64_t copy_ns(uint64_t bytes) const;
  int64_t peer_copy_ns(uint64_t bytes) const;
};

}  // namespace gapless::sim
