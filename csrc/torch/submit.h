// Queueing an operator of PyTorch as one piece of work.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/work.h"
#include "torch/generator.h"

namespace gapless::torch_device {

// The stream that new work for the device goes to.
Stream& stream_for(c10::Device device);

// Queues the work; with GAPLESS_LAUNCH_BLOCKING=1 also waits for it and raises its failure here.
void submit(Stream& stream, std::unique_ptr<Work> work);

// An operator's CPU kernel on aliases of device memory. Runs once, or at every replay.
class OpWork final : public Work {
 public:
  // `outputs`, where given, receive the results (flattened, in order; undefined ones are skipped).
  OpWork(const char* work_name, c10::OperatorHandle op, torch::jit::Stack arguments,
         std::vector<at::Tensor> outputs);

  void use_random_numbers(size_t argument, RandomTicket ticket);
  void run(const RunContext& context) override;
  std::string operands() const override;

 private:
  // Copies the results into the outputs.
  void store(const torch::jit::Stack& stack);

  c10::OperatorHandle op_;
  torch::jit::Stack arguments_;
  std::vector<at::Tensor> outputs_;
  int random_argument_ = -1;
  RandomTicket ticket_;
};

}  // namespace gapless::torch_device
