// Where the CPU's kernel gives other results than the operator's shape function tells.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "torch/shapes.h"

namespace gapless::torch_device {

// Changes the results that the shape function told into those that the CPU's kernel gives.
void correct_shapes(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments,
                    ResultShapes* results);

}  // namespace gapless::torch_device
