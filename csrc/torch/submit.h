// Queueing an operator of PyTorch as one piece of work.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/work.h"
#include "torch/generator.h"
#include "torch/op_plan.h"

namespace gapless::torch_device {

// The stream that new work for the device goes to.
Stream& stream_for(c10::Device device);

// Queues the work; with GAPLESS_LAUNCH_BLOCKING=1 also waits for it and raises its failure here.
void submit(Stream& stream, std::unique_ptr<Work> work);

// An operator's CPU kernel on aliases of device memory. Runs once, or at every replay.
class OpWork final : public Work {
 public:
  // `outputs`, where given, receive the results (flattened, in order; undefined ones are skipped).
  OpWork(const OpPlan& plan, c10::OperatorHandle op, torch::jit::Stack arguments,
         std::vector<at::Tensor> outputs);

  // The host waits for what the kernel returns; it is put here.
  void return_to(std::shared_ptr<torch::jit::Stack> results) { results_ = std::move(results); }
  void use_random_numbers(size_t argument, RandomTicket ticket);
  void run(const RunContext& context) override;
  WorkCost cost() const override;
  std::string operands() const override;

 private:
  void run_kernel(torch::jit::Stack* stack, const std::vector<at::Tensor>& outputs);
  void run_staged(torch::jit::Stack* stack, const RunContext& context);
  // Copies the results into the outputs.
  static void store(const torch::jit::Stack& stack, const std::vector<at::Tensor>& outputs);

  const OpPlan& plan_;
  c10::OperatorHandle op_;
  torch::jit::Stack arguments_;
  std::vector<at::Tensor> outputs_;
  std::shared_ptr<torch::jit::Stack> results_;
  int random_argument_ = -1;
  RandomTicket ticket_;
};

}  // namespace gapless::torch_device
