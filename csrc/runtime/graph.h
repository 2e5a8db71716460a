// A recorded sequence of work, replayed with one submit.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/stream.h"
#include "runtime/work.h"

namespace gapless {

// What capture collected. Shared by the graph and its replays in flight, whoever ends last.
struct GraphBody {
  std::vector<std::unique_ptr<Work>> works;
  uint64_t pool = 0;         // the memory pool that its allocations come from
  uint64_t rng_offsets = 0;  // random numbers' offsets that one replay takes
};

// Queues one replay of the body.
uint64_t submit_replay(Stream& stream, std::shared_ptr<const GraphBody> body, RunContext context,
                       const char* site);

}  // namespace gapless
