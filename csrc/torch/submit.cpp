#include "torch/submit.h"

#include <cstdlib>
#include <sstream>

#include "torch/alias.h"
#include "torch/errors.h"
#include "torch/graph_capture.h"
#include "torch/profiler.h"
#include "torch/submit_site.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

bool flag(const char* name) {
  const char* value = std::getenv(name);
  return value && *value && std::string(value) != "0";
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

OpWork::OpWork(const char* work_name, c10::OperatorHandle op, torch::jit::Stack arguments,
               std::vector<at::Tensor> outputs)
    : Work(WorkKind::kOp, work_name),
      op_(std::move(op)),
      arguments_(std::move(arguments)),
      outputs_(std::move(outputs)) {}

void OpWork::use_random_numbers(size_t argument, RandomTicket ticket) {
  random_argument_ = static_cast<int>(argument);
  ticket_ = ticket;
}

void OpWork::run(const RunContext& context) {
  // A copy: a captured work runs again, and a failed one still has to tell its operands.
  torch::jit::Stack stack = arguments_;
  if (random_argument_ >= 0) {
    stack[static_cast<size_t>(random_argument_)] = cpu_generator(ticket_, captured, context);
  }
  try {
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    store(stack);
  } catch (const c10::Error& error) {
    throw DeviceError(error.what_without_backtrace());  // the backtrace is this thread's, of no use
  }
}

void OpWork::store(const torch::jit::Stack& stack) {
  if (outputs_.empty()) return;
  std::vector<at::Tensor> results;
  for (const auto& value : stack) flatten(value, &results);
  TORCH_CHECK(results.size() == outputs_.size(), "returned ", results.size(),
              " tensors where its shape function gave ", outputs_.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (!outputs_[i].defined()) continue;
    TORCH_CHECK(results[i].sizes() == outputs_[i].sizes(), "result ", i, " has shape ",
                results[i].sizes(), " where its shape function gave ", outputs_[i].sizes());
    TORCH_CHECK(results[i].scalar_type() == outputs_[i].scalar_type(), "result ", i, " is ",
                results[i].scalar_type(), " where its shape function gave ",
                outputs_[i].scalar_type());
    outputs_[i].copy_(results[i]);
  }
}

std::string OpWork::operands() const {
  std::ostringstream text;
  bool first = true;
  for (const auto& value : arguments_) {
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
