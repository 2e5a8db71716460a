#include "torch/shape_corrections.h"

#include <c10/core/MemoryFormat.h>
#include <c10/util/strides.h>

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "torch/arguments.h"

namespace gapless::torch_device {
namespace {

using c10::IValue;
using Correction = void (*)(const c10::OperatorHandle&, c10::ArrayRef<IValue>, ResultShapes*);

// Shape functions give statistics of normalisations in float32. The CPU keeps them in the input's
// dtype, unless a parameter has another one than the input.
void statistics_dtype(const c10::OperatorHandle&, c10::ArrayRef<IValue> arguments,
                      ResultShapes* results) {
  const auto dtype = arguments[0].toTensor().scalar_type();
  if (!c10::isReducedFloatingType(dtype)) return;
  bool mixed = false;
  for (const auto& value : arguments) {
    for_each_tensor(value,
                    [&](const at::Tensor& tensor) { mixed |= tensor.scalar_type() != dtype; });
  }
  for (size_t i : {1, 2}) results->at(i).tensors[0].dtype = mixed ? c10::kFloat : dtype;
}

std::vector<int64_t> contiguous(c10::IntArrayRef sizes) {
  const auto strides = c10::contiguous_strides(sizes);
  return {strides.begin(), strides.end()};
}

bool writes_outputs(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return !arguments.empty() && arguments.back().is_out();
}

// In evaluation the CPU saves no statistics of a batch.
void batch_statistics(const c10::OperatorHandle& op, c10::ArrayRef<IValue> arguments,
                      ResultShapes* results) {
  if (!writes_outputs(op)) statistics_dtype(op, arguments, results);
  if (writes_outputs(op)) {  // the shape functions of out= variants leave outputs as they are
    const at::Tensor& input = arguments[0].toTensor();
    const auto channels = input.dim() > 1 ? input.size(1) : 0;
    results->at(0).tensors[0].sizes = input.sizes().vec();
    results->at(0).tensors[0].strides = contiguous(input.sizes());
    for (size_t i : {1, 2}) {
      results->at(i).tensors[0].sizes = {channels};
      results->at(i).tensors[0].strides = {1};
    }
  }
  const auto training = op.schema().argumentIndexWithName("training");
  if (!training || arguments[static_cast<size_t>(*training)].toBool()) return;
  for (size_t i : {1, 2}) {
    results->at(i).tensors[0].sizes = {0};
    results->at(i).tensors[0].strides = {1};
  }
}

// The CPU convolves in channels-last order as soon as its input or its weight is in that order.
void convolution_layout(c10::ArrayRef<IValue> arguments, size_t input, size_t results_with_layout,
                        ResultShapes* results) {
  std::optional<c10::MemoryFormat> format;
  for (size_t i : {input, input + 1}) {
    const auto suggested = arguments[i].toTensor().suggest_memory_format();
    if (suggested != c10::MemoryFormat::Contiguous) format = suggested;
  }
  if (!format) return;
  for (size_t i = 0; i < results_with_layout; ++i) {
    TensorShape& shape = results->at(i).tensors[0];
    if (!shape.defined) continue;
    if (*format == c10::MemoryFormat::ChannelsLast && shape.sizes.size() == 4) {
      shape.strides = c10::get_channels_last_strides_2d(shape.sizes);
    } else if (*format == c10::MemoryFormat::ChannelsLast3d && shape.sizes.size() == 5) {
      shape.strides = c10::get_channels_last_strides_3d(shape.sizes);
    }
  }
}

void convolution(const c10::OperatorHandle&, c10::ArrayRef<IValue> arguments,
                 ResultShapes* results) {
  convolution_layout(arguments, /*input=*/0, /*results_with_layout=*/1, results);
}

void convolution_backward(const c10::OperatorHandle&, c10::ArrayRef<IValue> arguments,
                          ResultShapes* results) {
  convolution_layout(arguments, /*input=*/1, /*results_with_layout=*/2, results);
}

}  // namespace

void correct_shapes(const c10::OperatorHandle& op, c10::ArrayRef<IValue> arguments,
                    ResultShapes* results) {
  static const auto* const corrections = new std::unordered_map<std::string_view, Correction>{
      {"aten::native_batch_norm", batch_statistics},
      {"aten::_native_batch_norm_legit", batch_statistics},
      {"aten::_batch_norm_with_update", batch_statistics},
      {"aten::native_layer_norm", statistics_dtype},
      {"aten::convolution", convolution},
      {"aten::convolution_backward", convolution_backward},
  };
  const auto found = corrections->find(op.operator_name().name);
  if (found != corrections->end()) found->second(op, arguments, results);
}

}  // namespace gapless::torch_device
