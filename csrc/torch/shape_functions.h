// Shape functions for operators that PyTorch gives none.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "torch/shapes.h"

namespace gapless::torch_device {

using ShapeFunction = ResultShapes (*)(c10::ArrayRef<c10::IValue> arguments);

// Ours, or nullptr.
ShapeFunction own_shape_function(const c10::OperatorHandle& op);

}  // namespace gapless::torch_device
