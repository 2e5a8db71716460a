#include "torch/shape_functions.h"

#include <c10/core/Contiguity.h>
#include <c10/util/strides.h>

#include <string_view>
#include <unordered_map>

namespace gapless::torch_device {
namespace {

using c10::IValue;

TensorShape contiguous(std::vector<int64_t> sizes, c10::ScalarType dtype) {
  auto strides = c10::contiguous_strides(sizes);
  return {true, std::move(sizes), {strides.begin(), strides.end()}, dtype};
}

ResultShapes one(TensorShape shape) {
  ResultShapes results(1);
  results[0].tensors.push_back(std::move(shape));
  return results;
}

// The result is laid out like a contiguous copy of an argument.
template <size_t argument>
ResultShapes contiguous_like(c10::ArrayRef<IValue> arguments) {
  const at::Tensor& tensor = arguments[argument].toTensor();
  return one(contiguous(tensor.sizes().vec(), tensor.scalar_type()));
}

// The result keeps the order of an argument's dimensions, if that has no gaps.
template <size_t argument>
ResultShapes dense_like(c10::ArrayRef<IValue> arguments) {
  const at::Tensor& tensor = arguments[argument].toTensor();
  if (!tensor.is_non_overlapping_and_dense()) return contiguous_like<argument>(arguments);
  return one({true, tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()});
}

}  // namespace

ShapeFunction own_shape_function(const c10::OperatorHandle& op) {
  static const auto* const functions = new std::unordered_map<std::string_view, ShapeFunction>{
      {"aten::_ctc_loss_backward", contiguous_like<1>},
      {"aten::_logcumsumexp", contiguous_like<0>},
      {"aten::_transformer_encoder_layer_fwd", contiguous_like<0>},
      {"aten::fractional_max_pool3d_backward", contiguous_like<1>},
      {"aten::mish_backward", dense_like<1>},
      {"aten::multi_margin_loss_backward", contiguous_like<1>},
      {"aten::multilabel_margin_loss_backward", contiguous_like<1>},
  };
  // Their out= variants are sized by the functional ones.
  if (op.schema().arguments().size() && op.schema().arguments().back().is_out()) return nullptr;
  const auto found = functions->find(op.operator_name().name);
  return found == functions->end() ? nullptr : found->second;
}

}  // namespace gapless::torch_device
