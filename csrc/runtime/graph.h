// A recorded sequence of work, replayed with one submit.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/stream.h"
#include "runtime/work.h"

namespace gapless {

// A stream that takes part in a capture which began on another one.
struct Branch {
  Stream* stream = nullptr;
  uint64_t joined = 0;  // how much of what it captured another stream has waited for
};

// What capture collected, from all streams that took part in the order of submission, which is the
// order of replay: on one stream, and right for every event between them. Shared by the graph and
// its replays in flight, whoever ends last. One host thread captures.
struct GraphBody {
  std::vector<std::unique_ptr<Work>> works;
  WorkCost cost;                 // of all works, summed up when the capture ends
  uint64_t pool = 0;             // the memory pool that its allocations come from
  uint64_t rng_offsets = 0;      // random numbers' offsets that one replay takes
  std::vector<Branch> branches;  // while it is captured
};

// `stream` waits for a mark that `marked` made when it had captured `captured` works of `body`:
// the stream takes part in the capture from now on, if it did not before. Throws UsageError where
// that capture has ended, or the stream is in another one or on another device.
void take_part(Stream& stream, Stream& marked, const std::shared_ptr<GraphBody>& body,
               uint64_t captured);

// Ends the capture on all its streams. Throws UsageError, with the capture ended, where one of them
// was not waited for at its end by another one.
void end_capture(Stream& origin);

// Queues one replay of the body.
uint64_t submit_replay(Stream& stream, std::shared_ptr<const GraphBody> body, RunContext context,
                       const char* site);

}  // namespace gapless
