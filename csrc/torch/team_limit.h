// How many threads a stream's kernels compute with, changed in the stream's order.
#pragma once

#include <memory>

#include "runtime/stream.h"

namespace gapless::torch_device {

// Between its begin and its end on one stream, kernels use `most` threads at most, and no more than
// the limit around it has; 0: all of the device's cores, whatever is around it. Both can be
// captured, and then count from replay to replay. It concerns drivers that compute on the host's
// cores.
class TeamLimit {
 public:
  TeamLimit(Stream& stream, int most);
  // Throws UsageError where a capture has begun or ended since the beginning.
  void end();

 private:
  class Begin;
  class End;
  // What the beginning found, for the end.
  struct Place;

  Stream& stream_;
  const GraphBody* const capture_;
  const std::shared_ptr<Place> place_;
};

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
