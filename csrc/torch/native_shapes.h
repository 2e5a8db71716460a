// Shape functions for common operators whose own ones PyTorch has written in Python.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "torch/shapes.h"

namespace gapless::torch_device {

// The results of an operator for these arguments; empty where the operator is not among them, or
// where the arguments are not the usual ones: then PyTorch's function has to tell, or to refuse.
//
// The first call of a shape function of PyTorch's that is written in Python and promotes dtypes
// imports PyTorch's tracer, which takes seconds.
ResultShapes native_shapes(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

}  // namespace gapless::torch_device
