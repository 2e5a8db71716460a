// One piece of work in a stream's queue.
#pragma once

#include <time.h>

#include <cstdint>
#include <string>

namespace gapless {

enum class WorkKind : int32_t {
  kOp = 0,
  kReplay = 1,
  kCopyToDevice = 2,
  kCopyToHost = 3,
  kCopyOnDevice = 4,
  kWait = 5,
};

// What a driver whose time is not the host's has to know of a work.
struct WorkCost {
  uint32_t operators = 0;
  uint64_t bytes = 0;
  double flops = 0;
};

// Where a work runs, and what a replay tells the works of its graph: where its random numbers
// start.
struct RunContext {
  int device = 0;
  int stream = 0;
  uint64_t rng_seed = 0;
  uint64_t rng_offset = 0;
};

class Stream;

// A place in another stream's order, which a work waits for.
struct Awaited {
  Stream* stream = nullptr;
  uint64_t place = 0;
};

// Runs on the stream's thread, once, or once per replay where it was captured. It must own nothing
// that Python can see: its destructor runs on that thread too, and may not take the global lock.
class Work {
 public:
  explicit Work(WorkKind work_kind, const char* work_name) : kind(work_kind), name(work_name) {}
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  virtual void run(const RunContext& context) = 0;
  // Before `run`: blocks until what the work waits for on another stream is reached, and returns
  // when that was, or 0.
  virtual int64_t await() { return 0; }
  // After `run`: when the device was done with it.
  virtual void ended(int64_t) {}
  virtual WorkCost cost() const { return {}; }
  // Operands' dtypes and shapes, for an error's text and the watchdog's. Called after a failure,
  // or by the watchdog's thread while the work runs.
  virtual std::string operands() const { return {}; }
  virtual Awaited awaited() const { return {}; }

  Work* next = nullptr;  // the queue is intrusive
  WorkKind kind;
  bool captured = false;
  const char* name;  // lives as long as the process
  uint64_t id = 0;   // place in the stream's order, from 1
  int64_t step = -1;
  int64_t submit_ns = 0;  // 0 while the recorder is off and the device's time is the host's
  const char* site = "";  // where it was submitted; lives as long as the process
};

inline int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
}

// The step that the calling thread's submissions belong to; -1 outside any.
int64_t current_step();
void set_current_step(int64_t step);

}  // namespace gapless
