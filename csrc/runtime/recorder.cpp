#include "runtime/recorder.h"

#include <utility>

namespace gapless {

namespace recorder {

std::atomic<bool> g_on{false};

namespace {
std::atomic<size_t> g_capacity{65536};
}

size_t capacity() { return g_capacity.load(std::memory_order_relaxed); }

void start(size_t capacity) {
  g_capacity = capacity;
  g_on = true;
}

void stop() { g_on = false; }

}  // namespace recorder

void RecordRing::add(const Record& record) {
  std::lock_guard lock(mutex_);
  if (const size_t capacity = recorder::capacity(); records_.size() < capacity) {
    // All at once: to grow would copy what is there, milliseconds in which the device idles.
    if (records_.size() == records_.capacity()) records_.reserve(capacity);
    records_.push_back(record);
    return;
  }
  records_[first_] = record;
  first_ = (first_ + 1) % records_.size();
  ++dropped_;
}

uint64_t RecordRing::drain(std::vector<Record>* out) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < records_.size(); ++i) {
    out->push_back(records_[(first_ + i) % records_.size()]);
  }
  records_.clear();
  first_ = 0;
  return std::exchange(dropped_, 0);
}

}  // namespace gapless
