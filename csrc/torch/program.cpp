#include "torch/program.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>

#include <optional>
#include <sstream>
#include <utility>

#include "runtime/device.h"
#include "torch/alias.h"
#include "torch/departures.h"
#include "torch/graph_capture.h"
#include "torch/interned.h"
#include "torch/operand.h"
#include "torch/staging.h"
#include "torch/submit.h"

namespace gapless::torch_device {
namespace {

using Runner = torch::inductor::AOTIModelContainerRunner;

class ProgramWork final : public Work {
 public:
  ProgramWork(const char* name, std::shared_ptr<Runner> runner, std::vector<bool> written)
      : Work(WorkKind::kOp, name), runner_(std::move(runner)), written_(std::move(written)) {}

  void add(const at::Tensor& tensor) { operands_.emplace_back(tensor); }
  void add_snapshot(const at::Tensor& tensor) {
    operands_.emplace_back();
    snapshots_.emplace_back(operands_.size() - 1, snapshot(tensor));
  }

  void run(const RunContext& context) override {
    const Device& here = device(context.device);
    if (!here.properties().computes) return;
    thread_local AliasPool pool;
    std::vector<at::Tensor> tensors;
    tensors.reserve(operands_.size());
    for (const Operand& operand : operands_) tensors.push_back(pool.take(operand));
    for (const auto& [at, tensor] : snapshots_) tensors[at] = tensor;
    if (here.memory_is_private()) {
      run_staged(tensors, context);
    } else {
      runner_->run(tensors);
    }
    for (at::Tensor& tensor : tensors) pool.give_back(std::move(tensor));
  }

  WorkCost cost() const override {
    WorkCost cost;
    cost.operators = 1;
    for (const Operand& operand : operands_) cost.bytes += operand.alias().nbytes();
    return cost;
  }

  std::string operands() const override {
    std::ostringstream text;
    for (const Operand& operand : operands_) {
      const at::Tensor tensor = operand.alias();
      if (!tensor.defined()) continue;
      text << (text.tellp() > 0 ? ", " : "") << c10::toString(tensor.scalar_type())
           << tensor.sizes();
    }
    return text.str();
  }

 private:
  void run_staged(const std::vector<at::Tensor>& tensors, const RunContext& context) {
    Staging staging(context.device, context.stream);
    for (size_t i = 0; i < tensors.size(); ++i) staging.add(tensors[i], written_[i]);
    staging.fetch();
    std::vector<at::Tensor> staged;
    for (const at::Tensor& tensor : tensors) staged.push_back(staging.staged(tensor));
    runner_->run(staged);
    staging.write_back();
  }

  const std::shared_ptr<Runner> runner_;
  const std::vector<bool> written_;
  std::vector<Operand> operands_;
  std::vector<std::pair<size_t, at::Tensor>> snapshots_;  // of host values, on private memory
};

}  // namespace

Program::Program(const std::string& path, const std::string& name)
    : name_(interned(name)),
      runner_(std::make_shared<torch::inductor::AOTIModelContainerRunnerCpu>(path)) {}

Program::~Program() = default;

void Program::launch(const std::vector<at::Tensor>& operands,
                     const std::vector<bool>& written) const {
  TORCH_CHECK(operands.size() == written.size(), name_, ": ", operands.size(), " operands, but ",
              written.size(), " flags that tell which are written");
  std::optional<c10::Device> device;
  for (const at::Tensor& tensor : operands) {
    if (tensor.is_privateuseone()) {
      TORCH_CHECK(!device || *device == tensor.device(), name_,
                  ": expected all operands on the same device, but found ", *device, " and ",
                  tensor.device());
      device = tensor.device();
    } else {
      TORCH_CHECK(tensor.is_cpu() && Operand::fits(tensor), name_, ": operand of shape ",
                  tensor.sizes(), " is on ", tensor.device(), "; move it with .to('gapless')");
    }
  }
  TORCH_CHECK(device, name_, ": none of the operands is on the device gapless");
  const c10::DeviceGuard guard(*device);
  Stream& stream = stream_for(*device);
  const bool is_private = gapless::device(device->index()).memory_is_private();
  auto work = std::make_unique<ProgramWork>(name_, runner_, written);
  for (const at::Tensor& tensor : operands) {
    if (tensor.is_privateuseone()) {
      note_use(stream, tensor);
      work->add(tensor);
    } else if (is_private) {
      work->add_snapshot(tensor);
    } else {
      work->add(tensor);
    }
  }
  if (is_private) count_staged(name_);
  submit(stream, std::move(work));
}

}  // namespace gapless::torch_device
