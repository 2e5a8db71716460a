// What the process says when host code touches the simulated device's memory.
#pragma once

#include <cstdint>

namespace gapless::sim {

// From now on a fault in the range is explained on stderr before the process dies of it as of any
// other, with whatever handler (Python's faulthandler) was there before.
void report_faults_in(int device, const void* address, uint64_t bytes);

// What the calling thread executes, for the explanation; nullptr: nothing.
void set_executing(const char* work_name);

}  // namespace gapless::sim
