// Every operator without a kernel of its own, asynchronously, by rule.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace gapless::torch_device {

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Puts the fallback before the wrappers of PyTorch that infer shapes anew at each call, wherever
// the device has no kernel of its own; it calls them where it has not remembered what they find.
// Called once, after all kernels of this library are registered.
void register_wrapped_operators();

// Queues calls of another library's operator ("_C::rms_norm") like those of PyTorch. Needed only
// where the operator is a composite, which runs at once and outranks a device's fallback.
void queue_operator(const std::string& name);

// Queues the operator's CPU kernel with its results copied into `outputs` (flattened, in order).
// `arguments` hold device tensors; the queue holds only aliases of them.
void submit_functional(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                       const std::vector<at::Tensor>& outputs);

// Allocates the results that the operator's shape function tells, queues its CPU kernel to fill
// them, and returns them.
torch::jit::Stack submit_inferred(const c10::OperatorHandle& op,
                                  c10::ArrayRef<c10::IValue> arguments, c10::Device device);

}  // namespace gapless::torch_device
