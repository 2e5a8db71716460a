// How many threads a stream's kernels compute with, changed in the stream's order.
#pragma once

#include "runtime/stream.h"

namespace gapless::torch_device {

// From here on, on this stream, kernels use `most` threads at most; 0: as many as the device has
// cores. Can be captured. It concerns drivers that compute on the host's cores, and no others.
void limit_team(Stream& stream, int most);

// On a stream's own thread: the size of the team, and another size as long as this lives, for
// kernels that were told before how many they would be.
class TeamSize {
 public:
  static int now();
  explicit TeamSize(int size);
  ~TeamSize();
  TeamSize(const TeamSize&) = delete;

 private:
  const int before_;
};

// What it is now, once all that was submitted before has run; 0: no OpenMP. Waits for the stream.
int team_size(Stream& stream);

}  // namespace gapless::torch_device
