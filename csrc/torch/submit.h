// Queueing an operator of PyTorch as one piece of work.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/work.h"
#include "torch/generator.h"
#include "torch/op_plan.h"
#include "torch/operand.h"

namespace gapless::torch_device {

// The stream that new work for the device goes to.
Stream& stream_for(c10::Device device);

// Queues the work; with GAPLESS_LAUNCH_BLOCKING=1 also waits for it and raises its failure here.
void submit(Stream& stream, std::unique_ptr<Work> work);

// An operator's CPU kernel on aliases of device memory. Runs once, or at every replay.
class OpWork final : public Work {
 public:
  OpWork(const OpPlan& plan, const c10::OperatorHandle& op);

  // The arguments in their order; device tensors become operands.
  void add_argument(const c10::IValue& value, Stream& stream);
  // Where given, they receive the results (flattened, in order; undefined ones are skipped).
  void add_output(const at::Tensor& tensor, Stream& stream);
  // The host waits for what the kernel returns; it is put here. Before the first argument.
  void return_to(std::shared_ptr<torch::jit::Stack> results) { results_ = std::move(results); }
  void use_random_numbers(size_t argument, RandomTicket ticket);
  // It will run more than once: its tensors are made now, and kept.
  void keep_tensors();

  void run(const RunContext& context) override;
  WorkCost cost() const override;
  std::string operands() const override;

  // Works are made by one thread and destroyed by another, thousands of times per second: their
  // memory goes round.
  static void* operator new(size_t bytes);
  static void operator delete(void* memory);

 private:
  struct Placed {
    Placed(const at::Tensor& tensor, int place)
        : operand(tensor), argument(place), impl(tensor.unsafeGetTensorImpl()) {}
    Operand operand;
    int argument;  // which one it is, or -1: an output
    // The first operand that is the very same tensor, or -1: some kernels ask whether the output is
    // an input.
    int same_as = -1;
    // The first operand in the same memory, or -1.
    int storage_of = -1;
    const void* impl;  // tells that while the work is made; not to be followed afterwards
  };
  void place_operand(const at::Tensor& tensor, int argument);
  using Tensors = c10::SmallVector<at::Tensor, 6>;
  // Of an operand, where those before it have theirs; `alias` makes one for memory of its own.
  template <typename Alias>
  static at::Tensor tensor_of(const Placed& placed, const Tensors& before, Alias&& alias);

  // Puts the operands' tensors where they belong.
  void place(const Tensors& tensors, torch::jit::Stack* stack,
             std::vector<at::Tensor>* outputs) const;
  Tensors aliases() const;
  void run_kernel(torch::jit::Stack* stack, const std::vector<at::Tensor>& outputs);
  void run_staged(torch::jit::Stack* stack, const std::vector<at::Tensor>& outputs,
                  const RunContext& context);
  // Copies the results into the outputs.
  static void store(const torch::jit::Stack& stack, const std::vector<at::Tensor>& outputs);

  const OpPlan& plan_;
  const c10::OperatorHandle op_;
  c10::SmallVector<c10::IValue, 6> arguments_;  // none where an operand belongs
  c10::SmallVector<Placed, 4> operands_;
  Tensors kept_;  // of a captured work, in the order of the operands
  std::shared_ptr<torch::jit::Stack> results_;
  int random_argument_ = -1;
  RandomTicket ticket_;
};

}  // namespace gapless::torch_device
