// What an operator's results will look like, by its shape function, without computing them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <vector>

#include "torch/op_plan.h"
#include "torch/shape_key.h"

namespace gapless::torch_device {

struct TensorShape {
  bool defined = false;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

struct ResultShape {
  bool is_list = false;
  std::vector<TensorShape> tensors;  // one where it is not a list
};

using ResultShapes = std::vector<ResultShape>;

ResultShapes shapes_of(const torch::jit::Stack& results);

// What this thread has remembered under the key, or nullptr.
std::shared_ptr<const ResultShapes> remembered(const ShapeKey& key);
void remember(const ShapeKey& key, std::shared_ptr<const ResultShapes> shapes);

// Raises what the shape function raises, on the host. Many shape functions are written in Python
// and take some 100 us, so that results are remembered by operator and arguments' layouts.
std::shared_ptr<const ResultShapes> infer_shapes(const c10::OperatorHandle& op,
                                                 c10::ArrayRef<c10::IValue> arguments);
// The same for an out= variant, whatever the sizes of the outputs that were brought.
std::shared_ptr<const ResultShapes> infer_output_shapes(const c10::OperatorHandle& op,
                                                        const OpPlan& plan,
                                                        c10::ArrayRef<c10::IValue> arguments);

}  // namespace gapless::torch_device
