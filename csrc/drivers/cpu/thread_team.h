// Where a stream's thread runs, and with how many helpers its kernels compute.
#pragma once

#include <vector>

namespace gapless::cpu {

// Places the calling thread on the cores, with that niceness, and sizes its OpenMP and MKL teams to
// match. Best effort: a container may forbid it, and the device works without.
void place_thread(const std::vector<int>& cores, int nice);

}  // namespace gapless::cpu
