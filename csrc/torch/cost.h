// What an operator costs a device, for drivers that model time.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <vector>

#include "runtime/work.h"

namespace gapless::torch_device {

// One operator; the bytes of all operands and results; the arithmetic of matrix products and
// attention (2 for each multiplication and addition), of nothing else.
WorkCost cost_of(const char* name, const torch::jit::Stack& arguments,
                 const std::vector<at::Tensor>& outputs);

}  // namespace gapless::torch_device
