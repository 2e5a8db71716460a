// Memory in which one caller and its workers, a process each, hand steps to each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace gapless::torch_device {

// The inputs and results of captured steps. Beside a socket for each worker it saves what those
// cost: one system call wakes all workers that wait for a step, and the caller is woken once per
// step, by the worker that is the last to answer.
//
// Steps take turns in slots. The caller may post a step when it has read the results of the one
// that had the slot before; so whoever is given a slot has it to itself.
class StepExchange {
 public:
  // What a worker is told, and what it answers with; gapless/pipeline/worker_channel.py knows them.
  static constexpr uint32_t kStep = 1;
  static constexpr uint32_t kResult = 2;
  static constexpr uint32_t kSkipped = 3;  // the device did not run the step to its end
  static constexpr uint32_t kCall = 5;     // something else: a message lies in the socket

  enum class Waited { kDone = 0, kTrouble = 1, kTime = 2 };

  // A row of results: this, up to kRowHeader bytes, and the result behind it.
  struct RowHeader {
    uint32_t kind;
    uint32_t rank;
    int64_t step;
    int64_t sent_ns;  // CLOCK_MONOTONIC
  };
  static constexpr uint64_t kRowHeader = 64;

  // Maps the file, which both ends describe alike and which begins as zeros. It stays the caller's
  // to close. Throws UsageError where it is too small or cannot be mapped.
  StepExchange(int file, uint32_t workers, uint32_t slots, uint64_t input_bytes,
               uint64_t result_bytes);
  ~StepExchange();
  StepExchange(const StepExchange&) = delete;
  static uint64_t file_bytes(uint32_t workers, uint32_t slots, uint64_t input_bytes,
                             uint64_t result_bytes);

  uint32_t workers() const { return workers_; }
  uint64_t input_bytes() const { return input_bytes_; }
  uint64_t result_bytes() const { return result_bytes_; }
  uint64_t row_bytes() const { return kRowHeader + result_bytes_; }

  // The caller's end. Where the next step's inputs go, `input_bytes` for each rank in turn.
  uint8_t* next_inputs() const;
  // Posts the step, with rank 0's input for all workers or with each one's own, and returns its
  // number.
  int64_t post(bool is_same_for_all);
  // Tells workers that a message lies in their sockets; the steps before it come first.
  void call(const std::vector<uint32_t>& ranks);
  // Blocks until all workers have answered the step, one of them has reported, or time is up.
  Waited await(int64_t step, int64_t timeout_ms) const;
  // The step's rows by rank, in one piece; they stay until the slot's next step is posted.
  const uint8_t* rows(int64_t step) const;

  // A worker's end. Blocks until step `next` was posted (kStep), or a call came (kCall); `calls`
  // is how many of those the worker has seen.
  uint32_t take(uint32_t rank, int64_t next, uint32_t* calls) const;
  const uint8_t* input(uint32_t rank, int64_t step) const;
  void answer(uint32_t rank, int64_t step, const void* result);  // none: the step was skipped
  // Ends the caller's wait: something is to be read in the worker's socket.
  void report();

 private:
  struct Control;
  struct Slot;
  // In the file: control, slots, and calls by rank; from the next page on inputs, then results.
  struct Places {
    uint64_t slots, calls, inputs, results, end;
  };

  static Places places(uint64_t workers, uint64_t slots, uint64_t input, uint64_t row);
  Control& control() const;
  Slot& slot(int64_t step) const;
  std::atomic<uint32_t>& calls(uint32_t rank) const;
  uint8_t* inputs(int64_t step) const;
  uint8_t* row(uint32_t rank, int64_t step) const;

  const uint32_t workers_;
  const uint32_t slots_;
  const uint64_t input_bytes_;
  const uint64_t result_bytes_;
  const Places at_;
  uint8_t* memory_ = nullptr;
};

}  // namespace gapless::torch_device
