// Which cores the device takes and which the host keeps.
#pragma once

#include <string>
#include <vector>

namespace gapless::cpu {

struct CorePlan {
  std::vector<int> device_cores;
  std::vector<int> host_cores;
  std::string reason;
};

// Decides from this process's affinity and GAPLESS_DEVICE_CORES: a count (the last ones are taken)
// or a list such as "2-3,5". By default the host keeps one core. Throws std::invalid_argument with
// the value, the limit and the remedy.
CorePlan plan_cores();

}  // namespace gapless::cpu
