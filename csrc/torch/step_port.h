// Where a worker process gets its steps' inputs from and sends their results to.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/stream.h"
#include "torch/graph.h"

namespace gapless::torch_device {

// What every message begins with. gapless/pipeline/worker_channel.py knows the other kinds.
struct MessageHeader {
  uint32_t kind = 0;
  uint32_t rank = 0;
  int64_t step = 0;
  int64_t sent_ns = 0;  // CLOCK_MONOTONIC
};

// A captured step's way between two processes, without a line of Python: its input is received into
// pinned memory, and its result is sent from there by the stream's thread, which is awake when the
// step ends. So a step wakes the worker once, when its input arrives.
//
// The steps take turns in slots, each a graph with the pinned memory that it reads and writes.
class StepPort {
 public:
  static constexpr uint32_t kClosed = 0;
  static constexpr uint32_t kStep = 1;     // with an input
  static constexpr uint32_t kResult = 2;   // with a result
  static constexpr uint32_t kSkipped = 3;  // a step that the device did not run to its end

  // The socket keeps the boundaries of messages, and stays the caller's.
  StepPort(int socket, uint32_t rank, int device);

  void add_slot(Graph* graph, void* input, uint64_t input_bytes, const void* result,
                uint64_t result_bytes);
  // Blocks until a message is there, and returns its kind. kStep: an input, which now lies in the
  // next slot. Of any other kind only the header was taken; kClosed: the other end is.
  uint32_t receive();
  // Submits the slot that `receive` has filled. Returns the slot's index.
  int64_t submit();

 private:
  struct Slot {
    Graph* graph;
    void* input;
    uint64_t input_bytes;
    const void* result;
    uint64_t result_bytes;
    uint64_t place = 0;  // of its last result in the stream
  };
  struct Socket {
    explicit Socket(int descriptor);
    ~Socket();
    Socket(const Socket&) = delete;
    int descriptor;
  };
  class SendResult;

  std::shared_ptr<const Socket> socket_;  // shared with what is queued
  const uint32_t rank_;
  const int device_;
  std::vector<Slot> slots_;
  int64_t next_ = 0;
  int64_t received_step_ = -1;
};

}  // namespace gapless::torch_device
