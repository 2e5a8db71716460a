#include "torch/submit.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "torch/alias.h"
#include "torch/arguments.h"
#include "torch/cost.h"
#include "torch/errors.h"
#include "torch/graph_capture.h"
#include "torch/profiler.h"
#include "torch/recycled.h"
#include "torch/staging.h"
#include "torch/submit_site.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

bool flag(const char* name) {
  const char* value = std::getenv(name);
  const std::string text = value ? value : "";
  TORCH_CHECK(text.empty() || text == "0" || text == "1", name, "=", text,
              ": must be 1 (on) or 0 (off); set or unset it before Python starts");
  return text == "1";
}

void describe(std::ostringstream& text, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    text << "undefined";
    return;
  }
  text << c10::toString(tensor.scalar_type()) << "[";
  for (int64_t i = 0; i < tensor.dim(); ++i) text << (i ? ", " : "") << tensor.size(i);
  text << "]";
}

void flatten(const c10::IValue& value, std::vector<at::Tensor>* out) {
  if (value.isTensor()) {
    out->push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) out->push_back(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      if (tensor.has_value()) out->push_back(*tensor);
    }
  }
}

// A kernel that passes through another shape on its way to the result's resizes its output, and
// warns of it as if the user had brought that. What users bring is looked at on the host.
class StreamWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().starts_with("An output with one or more elements was resized")) return;
    c10::WarningHandler::process(warning);
  }
};

void handle_warnings_of_this_thread() {
  thread_local StreamWarnings handler;
  c10::WarningUtils::set_warning_handler(&handler);
}

}  // namespace

Stream& stream_for(c10::Device device) {
  return translated([&]() -> Stream& {
    return current_stream(device.has_index() ? device.index() : current_device());
  });
}

void submit(Stream& stream, std::unique_ptr<Work> work) {
  static const bool blocking = flag("GAPLESS_LAUNCH_BLOCKING");
  work->site = submit_site();
  const int64_t begin_ns = submission_begins();
  const uint64_t place = stream.submit(std::move(work));
  note_submission(stream, place, begin_ns);
  if (blocking && !stream.capturing()) synchronize(stream);
}

OpWork::OpWork(const OpPlan& plan, const c10::OperatorHandle& op)
    : Work(WorkKind::kOp, plan.name), plan_(plan), op_(op) {}

void* OpWork::operator new(size_t bytes) { return recycled::take(bytes); }
void OpWork::operator delete(void* memory) { recycled::give_back(memory); }

void OpWork::add_argument(const c10::IValue& value, Stream& stream) {
  auto alias = [&](const at::Tensor& tensor) {
    if (!tensor.is_privateuseone()) return snapshot(tensor);
    note_use(stream, tensor);
    return alias_on_cpu(tensor);
  };
  if (!value.isTensor() || !value.toTensor().defined()) {
    arguments_.push_back(mapped(value, c10::kCPU, alias));
    return;
  }
  const at::Tensor& tensor = value.toTensor();
  const bool on_device = tensor.is_privateuseone();
  // A value within the work is no device memory, to be staged, and does not outlive the work.
  if (!on_device && (!Operand::fits(tensor) || results_ ||
                     gapless::device(stream.device()).memory_is_private())) {
    arguments_.emplace_back(snapshot(tensor));
    return;
  }
  if (on_device) note_use(stream, tensor);
  place_operand(tensor, static_cast<int>(arguments_.size()));
  arguments_.emplace_back();
}

void OpWork::place_operand(const at::Tensor& tensor, int argument) {
  Placed& placed = operands_.emplace_back(tensor, argument);
  if (!tensor.defined()) return;
  for (size_t i = 0; i + 1 < operands_.size(); ++i) {
    if (operands_[i].impl == placed.impl) {
      placed.same_as = static_cast<int>(i);
      return;
    }
    if (placed.storage_of < 0 && placed.operand.same_memory(operands_[i].operand)) {
      placed.storage_of = static_cast<int>(i);
    }
  }
}

template <typename Alias>
at::Tensor OpWork::tensor_of(const Placed& placed, const Tensors& before, Alias&& alias) {
  if (placed.same_as >= 0) return before[static_cast<size_t>(placed.same_as)];
  if (placed.storage_of < 0) return alias(placed.operand);
  return placed.operand.alias_in(before[static_cast<size_t>(placed.storage_of)].storage());
}

void OpWork::add_output(const at::Tensor& tensor, Stream& stream) {
  if (tensor.defined()) note_use(stream, tensor);
  place_operand(tensor, -1);
}

void OpWork::use_random_numbers(size_t argument, RandomTicket ticket) {
  random_argument_ = static_cast<int>(argument);
  ticket_ = ticket;
}

OpWork::Tensors OpWork::aliases() const {
  Tensors tensors;
  for (const Placed& placed : operands_) {
    tensors.push_back(
        tensor_of(placed, tensors, [](const Operand& operand) { return operand.alias(); }));
  }
  return tensors;
}

void OpWork::keep_tensors() { kept_ = aliases(); }

void OpWork::place(const Tensors& tensors, torch::jit::Stack* stack,
                   std::vector<at::Tensor>* outputs) const {
  stack->assign(arguments_.begin(), arguments_.end());
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (operands_[i].argument < 0) {
      outputs->push_back(tensors[i]);
    } else {
      (*stack)[static_cast<size_t>(operands_[i].argument)] = tensors[i];
    }
  }
}

void OpWork::run(const RunContext& context) {
  const Device& here = device(context.device);
  // What the host asked for needs a value; everything else may be left out on such a device.
  if (!here.properties().computes && !results_) return;
  handle_warnings_of_this_thread();
  thread_local AliasPool pool;
  thread_local torch::jit::Stack stack;  // for its memory; a kernel runs no other work
  std::vector<at::Tensor> outputs;
  Tensors taken;
  if (kept_.empty()) {
    for (const Placed& placed : operands_) {
      taken.push_back(
          tensor_of(placed, taken, [](const Operand& operand) { return pool.take(operand); }));
    }
  }
  place(kept_.empty() ? taken : kept_, &stack, &outputs);
  if (random_argument_ >= 0) {
    stack[static_cast<size_t>(random_argument_)] = cpu_generator(ticket_, captured, context);
  }
  try {
    if (here.memory_is_private()) {
      run_staged(&stack, outputs, context);
    } else {
      run_kernel(&stack, outputs);
    }
  } catch (const c10::Error& error) {
    stack.clear();
    throw DeviceError(error.what_without_backtrace());  // the backtrace is this thread's, of no use
  } catch (...) {
    stack.clear();
    throw;
  }
  if (results_) {
    *results_ = std::move(stack);
    stack = {};
  }
  stack.clear();
  outputs.clear();
  for (at::Tensor& tensor : taken) pool.give_back(std::move(tensor));
}

void OpWork::run_kernel(torch::jit::Stack* stack, const std::vector<at::Tensor>& outputs) {
  op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  store(*stack, outputs);
}

void OpWork::run_staged(torch::jit::Stack* stack, const std::vector<at::Tensor>& outputs,
                        const RunContext& context) {
  Staging staging(context.device, context.stream);
  for (size_t i = 0; i < stack->size(); ++i) {
    const bool written =
        std::find(plan_.written.begin(), plan_.written.end(), i) != plan_.written.end();
    for_each_tensor((*stack)[i], [&](const at::Tensor& tensor) { staging.add(tensor, written); });
  }
  for (const at::Tensor& output : outputs) staging.add(output, /*written=*/true);
  staging.fetch();
  auto staged = [&](const at::Tensor& tensor) { return staging.staged(tensor); };
  for (auto& value : *stack) value = mapped(value, c10::kCPU, staged);
  std::vector<at::Tensor> staged_outputs;
  for (const at::Tensor& output : outputs) staged_outputs.push_back(staging.staged(output));
  run_kernel(stack, staged_outputs);
  staging.write_back();
}

WorkCost OpWork::cost() const {
  torch::jit::Stack stack;
  std::vector<at::Tensor> outputs;
  place(aliases(), &stack, &outputs);
  return cost_of(plan_.name, stack, outputs);
}

void OpWork::store(const torch::jit::Stack& stack, const std::vector<at::Tensor>& outputs) {
  if (outputs.empty()) return;
  std::vector<at::Tensor> results;
  for (const auto& value : stack) flatten(value, &results);
  TORCH_CHECK(results.size() == outputs.size(), "returned ", results.size(),
              " tensors where its shape function gave ", outputs.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (!outputs[i].defined()) continue;
    TORCH_CHECK(results[i].sizes() == outputs[i].sizes(), "result ", i, " has shape ",
                results[i].sizes(), " where its shape function gave ", outputs[i].sizes());
    TORCH_CHECK(results[i].scalar_type() == outputs[i].scalar_type(), "result ", i, " is ",
                results[i].scalar_type(), " where its shape function gave ",
                outputs[i].scalar_type());
    outputs[i].copy_(results[i]);
  }
}

std::string OpWork::operands() const {
  torch::jit::Stack stack;
  std::vector<at::Tensor> outputs;
  place(aliases(), &stack, &outputs);
  std::ostringstream text;
  bool first = true;
  for (const auto& value : stack) {
    std::vector<at::Tensor> tensors;
    flatten(value, &tensors);
    for (const auto& tensor : tensors) {
      text << (first ? "" : ", ");
      describe(text, tensor);
      first = false;
    }
  }
  return text.str();
}

void note_use(Stream& stream, const at::Tensor& tensor) {
  Block* block = block_of(tensor);
  if (block && block->stream != &stream) {
    device(block->stream->device()).allocator().record_use(block, &stream);
  }
  if (auto* body = static_cast<CapturedBody*>(stream.capturing())) {
    if (block && block->pool->id == body->pool && body->pool != 0) return;
    const c10::Storage& storage = tensor.storage();
    body->kept.try_emplace(storage.unsafeGetStorageImpl(), storage);
  }
}

}  // namespace gapless::torch_device
