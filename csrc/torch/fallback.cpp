#include "torch/fallback.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "torch/alias.h"
#include "torch/arguments.h"
#include "torch/copy.h"
#include "torch/departures.h"
#include "torch/graph_capture.h"
#include "torch/op_plan.h"
#include "torch/outputs.h"
#include "torch/shape_key.h"
#include "torch/shapes.h"
#include "torch/submit.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

using c10::IValue;
using torch::jit::Stack;

// The device that the call is about: of its tensors, else of its device argument, else the current.
c10::Device device_of(const OpPlan& plan, c10::ArrayRef<IValue> arguments) {
  std::optional<c10::Device> device;
  for (const auto& value : arguments) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (tensor.device().is_privateuseone()) {
        TORCH_CHECK(!device || *device == tensor.device(), plan.name,
                    ": expected all tensors on the same device, but found ",
                    device ? *device : tensor.device(), " and ", tensor.device());
        device = tensor.device();
      } else {
        TORCH_CHECK(tensor.is_cpu() && (tensor.dim() == 0 || plan.takes_host_tensors), plan.name,
                    ": expected all tensors on the same device, but found ",
                    c10::Device(c10::kPrivateUse1, 0), " and ", tensor.device(), " (shape ",
                    tensor.sizes(), "); move it with .to('gapless')");
      }
    });
    if (!device && value.isDevice() && value.toDevice().is_privateuseone()) {
      device = value.toDevice();
    }
  }
  if (device && device->has_index()) return *device;
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(current_device())};
}

at::Tensor allocate(const TensorShape& shape, c10::Device device) {
  if (!shape.defined) return {};
  // As at::empty_strided does, without the way through the dispatcher. The device is the current.
  TORCH_INTERNAL_ASSERT(device.index() == current_device());
  return at::detail::empty_strided_generic(
      shape.sizes, shape.strides, c10::GetAllocator(c10::kPrivateUse1),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), shape.dtype);
}

IValue allocate(const ResultShape& result, c10::Device device, std::vector<at::Tensor>* flat) {
  c10::List<at::Tensor> list;
  for (const auto& shape : result.tensors) {
    flat->push_back(allocate(shape, device));
    if (!result.is_list) return flat->back();
    list.push_back(flat->back());
  }
  return list;
}

// `returned`, where given, takes what the kernel returns.
std::unique_ptr<OpWork> make_work(Stream& stream, const c10::OperatorHandle& op, const OpPlan& plan,
                                  c10::ArrayRef<IValue> arguments, c10::Device device,
                                  c10::ArrayRef<at::Tensor> outputs,
                                  std::shared_ptr<Stack> returned = nullptr) {
  auto work = std::make_unique<OpWork>(plan, op);
  if (returned) work->return_to(std::move(returned));
  for (const auto& value : arguments) work->add_argument(value, stream);
  for (const auto& output : outputs) work->add_output(output, stream);
  GraphBody* body = stream.capturing();
  if (plan.generator >= 0) {
    const auto at = static_cast<size_t>(plan.generator);
    const IValue& given = arguments[at];
    if (body) {
      TORCH_CHECK(given.isNone() || given.toGenerator() == default_generator(device.index()),
                  plan.name, ": only the device's default generator can be captured in a graph");
      work->use_random_numbers(at, {0, body->rng_offsets++});
    } else {
      work->use_random_numbers(
          at,
          as_ours(given.isNone() ? default_generator(device.index()) : given.toGenerator()).take());
    }
  }
  if (body) work->keep_tensors();
  if (gapless::device(device.index()).memory_is_private()) count_staged(plan.name);
  return work;
}

void submit_op(const c10::OperatorHandle& op, const OpPlan& plan, c10::ArrayRef<IValue> arguments,
               c10::Device device, c10::ArrayRef<at::Tensor> outputs) {
  Stream& stream = stream_for(device);
  submit(stream, make_work(stream, op, plan, arguments, device, outputs));
}

// What one of PyTorch's wrappers calls while it runs on this thread.
class WrapperCalls {
 public:
  WrapperCalls() : outer_(std::exchange(t_current, this)) {}
  ~WrapperCalls() { t_current = outer_; }
  WrapperCalls(const WrapperCalls&) = delete;
  WrapperCalls& operator=(const WrapperCalls&) = delete;

  static WrapperCalls* current() { return t_current; }

  void note(const OpPlan& plan, c10::ArrayRef<IValue> arguments) {
    ++count_;
    outputs_.clear();
    for (size_t i : plan.outputs) {
      for_each_tensor(arguments[i], [&](const at::Tensor& output) {
        outputs_.push_back({output.sizes().vec(), output.storage().nbytes()});
      });
    }
  }
  // Whether it was one call, of an out= variant that got its outputs as they are returned, with no
  // more memory than they need: some kernels use the output as a scratchpad.
  bool was_plain(const ResultShapes& results, bool fresh) const {
    if (count_ != 1 || outputs_.size() != results.size()) return false;
    for (size_t i = 0; i < results.size(); ++i) {
      const TensorShape& shape = results[i].tensors[0];
      if (results[i].is_list || shape.sizes != outputs_[i].sizes) return false;
      const size_t needed = at::detail::computeStorageNbytes(shape.sizes, shape.strides,
                                                             c10::elementSize(shape.dtype));
      if (fresh && outputs_[i].storage_bytes != needed) return false;
    }
    return true;
  }

 private:
  inline static thread_local WrapperCalls* t_current = nullptr;
  WrapperCalls* const outer_;
  int count_ = 0;
  struct Output {
    std::vector<int64_t> sizes;
    size_t storage_bytes = 0;
  };
  std::vector<Output> outputs_;  // of the last one, before anybody resizes them
};

// Past PyTorch's own wrapper of the operator, which would infer what it has inferred before.
Stack submit_wrapped(const c10::OperatorHandle& op, const OpPlan& plan,
                     c10::ArrayRef<IValue> arguments, c10::Device device) {
  ShapeKey key(op, ShapeKey::Purpose::kWrapper);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (plan.is_number[i]) {
      key.add_number(arguments[i]);
    } else {
      key.add_argument(arguments[i]);
    }
  }
  const auto shapes = remembered(key);
  if (!shapes) {
    // The first time with such operands: it checks them, and calls the out= variant. Another
    // device's key, which has no kernels, leads to it.
    Stack stack(arguments.begin(), arguments.end());
    WrapperCalls calls;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse2), &stack);
    auto found = std::make_shared<const ResultShapes>(shapes_of(stack));
    if (calls.was_plain(*found, plan.out_plan != nullptr)) remember(key, std::move(found));
    return stack;
  }
  Stack results;
  if (!plan.out_plan) {
    submit_op(op, plan, arguments, device, {});
    for (int argument : plan.returned) results.push_back(arguments[static_cast<size_t>(argument)]);
    return results;
  }
  Stream& stream = stream_for(device);
  auto work = std::make_unique<OpWork>(*plan.out_plan, *plan.out_variant);
  for (const auto& value : arguments) work->add_argument(value, stream);
  for (const auto& shape : *shapes) {
    results.emplace_back(allocate(shape.tensors[0], device));
    work->add_argument(results.back(), stream);
  }
  if (stream.capturing()) work->keep_tensors();
  if (gapless::device(device.index()).memory_is_private()) count_staged(plan.out_plan->name);
  submit(stream, std::move(work));
  return results;
}

// Waits for the operator's results, and brings fresh ones to the device. The kernel runs on the
// stream's thread all the same: only there is the memory within its reach.
Stack run_on_host(const c10::OperatorHandle& op, const OpPlan& plan,
                  c10::ArrayRef<IValue> arguments, c10::Device device) {
  Stream& stream = stream_for(device);
  refuse_in_capture(stream, plan.name);
  count_departure(plan.name, plan.host_reason);
  auto returned = std::make_shared<Stack>();
  submit(stream, make_work(stream, op, plan, arguments, device, {}, returned));
  synchronize(stream, plan.name);
  Stack stack = std::move(*returned);
  auto to_device = [&](const at::Tensor& result) {
    auto out = at::empty_strided(result.sizes(), result.strides(), result.options().device(device));
    copy(result, out, /*non_blocking=*/true);
    return out;
  };
  for (size_t r = 0; r < stack.size(); ++r) {
    stack[r] = plan.returned[r] >= 0 ? arguments[static_cast<size_t>(plan.returned[r])]
                                     : mapped(stack[r], device, to_device);
  }
  return stack;
}

// An out= variant that cannot say beforehand how large its outputs will be: the functional variant
// runs here, and the outputs take its results.
Stack run_out_on_host(const OpPlan& plan, c10::ArrayRef<IValue> arguments, c10::Device device) {
  const OpPlan& functional = plan_of(*plan.functional);
  Stack inputs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!plan.is_output(i)) inputs.push_back(arguments[i]);
  }
  const Stack results = run_on_host(*plan.functional, functional, inputs, device);
  Stack returned;
  for (size_t i = 0; i < plan.outputs.size() && i < results.size(); ++i) {
    const IValue& outputs = arguments[plan.outputs[i]];
    store_resized(plan, results[i], outputs);
    if (i < plan.returned.size()) returned.push_back(outputs);
  }
  return returned;
}

void queue_functional(const OpPlan& plan, c10::ArrayRef<IValue> arguments, c10::Device device) {
  Stack inputs;
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (plan.is_output(i)) {
      outputs.push_back(arguments[i].toTensor());
    } else {
      inputs.push_back(arguments[i]);
    }
  }
  submit_op(*plan.functional, plan_of(*plan.functional), inputs, device, outputs);
}

}  // namespace

void submit_functional(const c10::OperatorHandle& op, const Stack& arguments,
                       const std::vector<at::Tensor>& outputs) {
  submit_op(op, plan_of(op), arguments, outputs.front().device(), outputs);
}

Stack submit_inferred(const c10::OperatorHandle& op, c10::ArrayRef<IValue> arguments,
                      c10::Device device) {
  const OpPlan& plan = plan_of(op);
  const auto shapes = infer_shapes(op, arguments);
  std::vector<at::Tensor> outputs;
  Stack results;
  for (size_t r = 0; r < shapes->size(); ++r) {
    if (plan.returned[r] >= 0) {
      outputs.emplace_back();
      results.push_back(arguments[static_cast<size_t>(plan.returned[r])]);
    } else {
      results.push_back(allocate((*shapes)[r], device, &outputs));
    }
  }
  submit_op(op, plan, arguments, device, outputs);
  return results;
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const OpPlan& plan = plan_of(op);
  const size_t count = plan.arguments;
  const c10::ArrayRef<IValue> arguments(stack->data() + stack->size() - count, count);
  if (auto* calls = WrapperCalls::current()) calls->note(plan, arguments);
  const c10::Device device = device_of(plan, arguments);
  std::optional<c10::DeviceGuard> guard;
  if (device.index() != current_device()) guard.emplace(device);
  Stack results;
  switch (plan.kind) {
    case OpKind::kView:
      TORCH_CHECK_NOT_IMPLEMENTED(false, plan.name,
                                  " is a view and has no kernel for the device gapless");
    case OpKind::kHost:
      results = plan.functional ? run_out_on_host(plan, arguments, device)
                                : run_on_host(op, plan, arguments, device);
      break;
    case OpKind::kMutating:
      if (plan.has_wrapper) {
        results = submit_wrapped(op, plan, arguments, device);
        break;
      }
      // A wrapper has sized the outputs.
      if (plan.is_out && !(WrapperCalls::current() && plan.gets_sized_outputs) &&
          !size_outputs(op, plan, arguments) && plan.functional) {
        results = run_out_on_host(plan, arguments, device);
        break;
      }
      if (plan.queues_functional && plan.functional) {
        queue_functional(plan, arguments, device);
      } else {
        submit_op(op, plan, arguments, device, {});
      }
      for (int argument : plan.returned) {
        results.push_back(arguments[static_cast<size_t>(argument)]);
      }
      break;
    case OpKind::kFunctional:
      results = plan.has_wrapper ? submit_wrapped(op, plan, arguments, device)
                                 : submit_inferred(op, arguments, device);
      break;
  }
  torch::jit::drop(*stack, count);
  for (auto& result : results) stack->push_back(std::move(result));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// These have a kernel for the CPU and a decomposition for other devices. The decomposition rounds
// differently; with the fallback in its place the device runs what the CPU runs.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name :
       {"_stack", "_stack.out", "mode.values", "conj_physical_", "addr", "addr.out", "all.dims",
        "all.dims_out", "any.dims", "any.dims_out", "linalg__powsum", "mish_backward",
        "native_channel_shuffle", "native_group_norm", "native_layer_norm", "silu_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

void register_wrapped_operators() {
  static auto* const library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !name.name.starts_with("aten::") || !has_wrapper(*op)) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    const std::string local = c10::toString(name).substr(std::string_view("aten::").size());
    library->impl(local.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

void queue_operator(const std::string& name) {
  const size_t colons = name.find("::");
  TORCH_CHECK(colons != std::string::npos, "\"", name,
              "\" is no operator's name; it is namespace::operator");
  const std::string space = name.substr(0, colons), local = name.substr(colons + 2);
  const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
  TORCH_CHECK(op, "the operator ", name, " is not registered; import its library before");
  if (op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return;
  // What is registered stays for the life of the process.
  auto* const library = new torch::Library(torch::Library::IMPL, space,
                                           c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl(local.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace gapless::torch_device
