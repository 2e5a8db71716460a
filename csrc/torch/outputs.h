// The outputs of an out= variant, which PyTorch resizes where they do not fit.
//
// A kernel on the device's thread cannot resize what it got an alias of, so that outputs get their
// size on the host, before the kernel is queued.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "torch/op_plan.h"

namespace gapless::torch_device {

// Resizes those outputs that do not have the size that the shape function tells, with PyTorch's
// warning where they held something. False where no shape function tells.
bool size_outputs(const c10::OperatorHandle& op, const OpPlan& plan,
                  c10::ArrayRef<c10::IValue> arguments);

// Copies fresh results into the caller's outputs (a tensor or a list of them), resized as needed.
void store_resized(const OpPlan& plan, const c10::IValue& results, const c10::IValue& outputs);

}  // namespace gapless::torch_device
