#include "torch/fallback.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <memory>
#include <optional>

#include "torch/alias.h"
#include "torch/arguments.h"
#include "torch/copy.h"
#include "torch/departures.h"
#include "torch/graph_capture.h"
#include "torch/op_plan.h"
#include "torch/outputs.h"
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
  return at::empty_strided(shape.sizes, shape.strides,
                           at::TensorOptions().dtype(shape.dtype).device(device));
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

std::unique_ptr<OpWork> make_work(Stream& stream, const c10::OperatorHandle& op, const OpPlan& plan,
                                  c10::ArrayRef<IValue> arguments, c10::Device device,
                                  const std::vector<at::Tensor>& outputs) {
  auto alias = [&](const at::Tensor& tensor) {
    if (!tensor.device().is_privateuseone()) return snapshot(tensor);
    note_use(stream, tensor);
    return alias_on_cpu(tensor);
  };
  Stack queued;
  queued.reserve(arguments.size());
  for (const auto& value : arguments) queued.push_back(mapped(value, c10::kCPU, alias));
  std::vector<at::Tensor> queued_outputs;
  for (const auto& output : outputs) {
    queued_outputs.push_back(output.defined() ? alias(output) : output);
  }
  auto work = std::make_unique<OpWork>(plan, op, std::move(queued), std::move(queued_outputs));
  if (plan.generator >= 0) {
    const auto at = static_cast<size_t>(plan.generator);
    const IValue& given = arguments[at];
    GraphBody* body = stream.capturing();
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
  if (gapless::device(device.index()).memory_is_private()) count_staged(plan.name);
  return work;
}

void submit_op(const c10::OperatorHandle& op, const OpPlan& plan, c10::ArrayRef<IValue> arguments,
               c10::Device device, const std::vector<at::Tensor>& outputs) {
  Stream& stream = stream_for(device);
  submit(stream, make_work(stream, op, plan, arguments, device, outputs));
}

// Waits for the operator's results, and brings fresh ones to the device. The kernel runs on the
// stream's thread all the same: only there is the memory within its reach.
Stack run_on_host(const c10::OperatorHandle& op, const OpPlan& plan,
                  c10::ArrayRef<IValue> arguments, c10::Device device) {
  Stream& stream = stream_for(device);
  refuse_in_capture(stream, plan.name);
  count_departure(plan.name, plan.host_reason);
  auto returned = std::make_shared<Stack>();
  auto work = make_work(stream, op, plan, arguments, device, {});
  work->return_to(returned);
  submit(stream, std::move(work));
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
  const size_t count = op.schema().arguments().size();
  // A copy: results replace the arguments on the stack, and they still have to be mapped back.
  const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  const c10::Device device = device_of(plan, arguments);
  const c10::DeviceGuard guard(device);
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
      if (plan.is_out && !size_outputs(op, plan, arguments) && plan.functional) {
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
      results = submit_inferred(op, arguments, device);
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
       {"_stack", "_stack.out", "conj_physical_", "addr", "addr.out", "all.dims", "all.dims_out",
        "any.dims", "any.dims_out", "linalg__powsum", "mish_backward", "native_channel_shuffle",
        "native_group_norm", "native_layer_norm", "silu_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

}  // namespace gapless::torch_device
