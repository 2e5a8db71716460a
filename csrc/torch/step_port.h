// How a worker process takes its steps' inputs from an exchange and answers with their results.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "torch/graph.h"
#include "torch/step_exchange.h"

namespace gapless::torch_device {

// A captured step's way between two processes, without a line of Python: its input is copied into
// pinned memory, and its result is handed over by the stream's thread, which is awake when the step
// ends. So a step wakes the worker once: when its own device has ended a step and the next one was
// posted already, or when it is posted.
//
// The steps take turns in slots, each a graph with the pinned memory that it reads and writes. As
// many are in flight at most; what was posted beyond waits in the exchange.
class StepPort {
 public:
  StepPort(std::shared_ptr<StepExchange> exchange, uint32_t rank, int device);

  void add_slot(Graph* graph, void* input, uint64_t input_bytes, const void* result,
                uint64_t result_bytes);
  // Blocks until a slot is free and a step was posted, whose input then lies in that slot
  // (StepExchange::kStep), or until a message lies in the worker's socket (kCall).
  uint32_t receive();
  // Submits the slot that `receive` has filled. Returns the slot's index.
  int64_t submit();
  // The step that was received and not submitted; -1: none.
  int64_t received() const { return is_filled_ ? next_ : -1; }
  // The slot that it is in.
  size_t received_slot() const { return static_cast<size_t>(next_) % slots_.size(); }

 private:
  struct Slot {
    Graph* graph;
    void* input;
    const void* result;
  };
  class Answer;
  // How many steps the device is done with, run or skipped; rung where somebody waits.
  struct Progress {
    std::atomic<uint32_t> ended{0};
    std::atomic<bool> is_awaited{false};
  };

  void await_slot();

  const std::shared_ptr<StepExchange> exchange_;  // shared with what is queued
  const uint32_t rank_;
  const int device_;
  const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();  // the same
  std::vector<Slot> slots_;
  int64_t next_ = 0;
  uint32_t calls_ = 0;
  bool is_filled_ = false;
};

}  // namespace gapless::torch_device
