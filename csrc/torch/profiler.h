// torch.profiler's view of the device: which operation of the host submitted a work.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/stream.h"

namespace gapless::torch_device {

extern std::atomic<bool> g_profiling;

void note_submission_slow(const Stream& stream, uint64_t place, int64_t begin_ns);

// After each submission; costs a load while nobody profiles.
inline void note_submission(const Stream& stream, uint64_t place, int64_t begin_ns) {
  if (g_profiling.load(std::memory_order_relaxed)) note_submission_slow(stream, place, begin_ns);
}
inline int64_t submission_begins() {
  return g_profiling.load(std::memory_order_relaxed) ? now_ns() : 0;
}

// Lets Kineto, the library under torch.profiler, ask this device for its activity.
void register_profiler();

}  // namespace gapless::torch_device
