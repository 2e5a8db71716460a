// The timeline recorder: one bounded ring of records per stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/work.h"

namespace gapless {

struct Record {
  uint64_t work = 0;
  int64_t step = -1;
  const char* name = nullptr;
  WorkKind kind = WorkKind::kOp;
  int64_t submit_ns = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

namespace recorder {

extern std::atomic<bool> g_on;

inline bool is_on() { return g_on.load(std::memory_order_relaxed); }
// Records per stream that a ring holds before the oldest are dropped (and counted).
size_t capacity();
void start(size_t capacity);
void stop();

}  // namespace recorder

// Written by one stream's thread, drained by any. The lock is per record and hardly ever contended.
class RecordRing {
 public:
  void add(const Record& record);
  // Moves the records out, oldest first, and returns how many had been dropped since the last call.
  uint64_t drain(std::vector<Record>* out);

 private:
  std::mutex mutex_;
  std::vector<Record> records_;
  size_t first_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace gapless
