#include "torch/native_shapes.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/result_type.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "torch/alias.h"

namespace gapless::torch_device {
namespace {

using c10::IValue;
using c10::ScalarType;
using Arguments = c10::ArrayRef<IValue>;
using Function = ResultShapes (*)(Arguments);

const ResultShapes kLeft;  // to PyTorch

ResultShape one(TensorShape shape) {
  ResultShape result;
  result.tensors.push_back(std::move(shape));
  return result;
}

TensorShape contiguous(std::vector<int64_t> sizes, ScalarType dtype) {
  const auto strides = c10::contiguous_strides(sizes);
  return {true, std::move(sizes), {strides.begin(), strides.end()}, dtype};
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided && !tensor.is_quantized();
}

// What an elementwise kernel of the CPU makes of fresh results: broadcast, and in the order of its
// operands' dimensions.
ResultShapes elementwise(std::initializer_list<at::Tensor> operands, ScalarType dtype) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).set_check_mem_overlap(false);
  config.declare_static_dtype_and_device(dtype, c10::kMeta).add_owned_output(at::Tensor());
  for (const at::Tensor& operand : operands) {
    if (!is_plain(operand)) return kLeft;
    config.add_owned_const_input(alias_as_meta(operand));
  }
  const auto iterator = config.build();
  const at::Tensor& result = iterator.tensor(0);
  return {one({true, result.sizes().vec(), result.strides().vec(), dtype})};
}

// Of an out= variant only what needs no cast, which might have to be refused.
bool gives(Arguments arguments, size_t output, ScalarType dtype) {
  return arguments.size() <= output || arguments[output].toTensor().scalar_type() == dtype;
}

// relu, hardtanh and the like of floating-point numbers.
ResultShapes floating_unary(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  if (!self.defined() || !c10::isFloatingType(self.scalar_type())) return kLeft;
  return elementwise({self}, self.scalar_type());
}

ResultShapes absolute(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const auto dtype = self.scalar_type();
  if (c10::isComplexType(dtype) || dtype == c10::kBool || !gives(arguments, 1, dtype)) return kLeft;
  return elementwise({self}, dtype);
}

ResultShapes boolean_unary(Arguments arguments) {
  if (!gives(arguments, 1, c10::kBool)) return kLeft;
  return elementwise({arguments[0].toTensor()}, c10::kBool);
}

ResultShapes boolean_binary(Arguments arguments) {
  if (!gives(arguments, 2, c10::kBool)) return kLeft;
  return elementwise({arguments[0].toTensor(), arguments[1].toTensor()}, c10::kBool);
}

ResultShapes floor_division(Arguments arguments) {
  const at::Tensor &self = arguments[0].toTensor(), &other = arguments[1].toTensor();
  if (!is_plain(self) || !is_plain(other)) return kLeft;
  const auto dtype = at::result_type(self, other);
  if (c10::isComplexType(dtype) || dtype == c10::kBool || !gives(arguments, 2, dtype)) return kLeft;
  return elementwise({self, other}, dtype);
}

ResultShapes selection(Arguments arguments) {
  const at::Tensor& condition = arguments[0].toTensor();
  const at::Tensor &self = arguments[1].toTensor(), &other = arguments[2].toTensor();
  if (!is_plain(condition) || !is_plain(self) || !is_plain(other)) return kLeft;
  const auto dtype = at::result_type(self, other);
  if (condition.scalar_type() != c10::kBool || !gives(arguments, 3, dtype)) return kLeft;
  // An operand of another dtype is converted first, which closes the gaps in its layout.
  for (const at::Tensor* operand : {&self, &other}) {
    if (operand->scalar_type() != dtype && !operand->is_non_overlapping_and_dense()) return kLeft;
  }
  return elementwise({condition, self, other}, dtype);
}

// The dtype in which the CPU keeps a normalisation's statistics; Undefined where it would refuse
// the parameters.
ScalarType statistics_dtype(const at::Tensor& input, std::initializer_list<at::Tensor> parameters) {
  const auto dtype = input.scalar_type();
  if (!c10::isFloatingType(dtype)) return ScalarType::Undefined;
  bool same = true, single = true;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.defined()) continue;
    same = same && parameter.scalar_type() == dtype;
    single = single && parameter.scalar_type() == c10::kFloat;
  }
  if (same) return dtype;
  return single && c10::isReducedFloatingType(dtype) ? c10::kFloat : ScalarType::Undefined;
}

at::Tensor optional(const IValue& value) {
  return value.isNone() ? at::Tensor() : value.toTensor();
}

bool has_sizes(const at::Tensor& parameter, c10::IntArrayRef sizes) {
  return !parameter.defined() || parameter.sizes() == sizes;
}

ResultShapes layer_norm(Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const auto normalized = arguments[1].toDimVector();
  const at::Tensor weight = optional(arguments[2]), bias = optional(arguments[3]);
  if (!is_plain(input) || !input.is_contiguous() || normalized.empty() ||
      normalized.size() > static_cast<size_t>(input.dim())) {
    return kLeft;
  }
  const size_t outer = static_cast<size_t>(input.dim()) - normalized.size();
  const auto dtype = statistics_dtype(input, {weight, bias});
  if (dtype == ScalarType::Undefined || input.sizes().slice(outer) != normalized ||
      !has_sizes(weight, normalized) || !has_sizes(bias, normalized)) {
    return kLeft;
  }
  std::vector<int64_t> kept = input.sizes().slice(0, outer).vec();
  kept.resize(static_cast<size_t>(input.dim()), 1);
  return {one(contiguous(input.sizes().vec(), input.scalar_type())), one(contiguous(kept, dtype)),
          one(contiguous(kept, dtype))};
}

ResultShapes batch_norm(Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  if (!is_plain(input) || input.dim() < 2 || !input.is_contiguous()) return kLeft;
  const std::vector<int64_t> channels{input.size(1)};
  const at::Tensor weight = optional(arguments[1]), bias = optional(arguments[2]);
  const at::Tensor mean = optional(arguments[3]), variance = optional(arguments[4]);
  for (const at::Tensor& each : {weight, bias, mean, variance}) {
    if (!has_sizes(each, channels)) return kLeft;
  }
  const bool training = arguments[5].toBool();
  const auto dtype = statistics_dtype(input, {weight, bias, mean, variance});
  if (dtype == ScalarType::Undefined || mean.defined() != variance.defined() ||
      (!training && !mean.defined())) {
    return kLeft;
  }
  // In evaluation the CPU saves no statistics.
  const std::vector<int64_t> saved{training ? input.size(1) : 0};
  return {one(contiguous(input.sizes().vec(), input.scalar_type())), one(contiguous(saved, dtype)),
          one(contiguous(saved, dtype))};
}

ResultShapes group_norm(Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const at::Tensor weight = optional(arguments[1]), bias = optional(arguments[2]);
  const int64_t batch = arguments[3].toInt(), channels = arguments[4].toInt(),
                pixels = arguments[5].toInt(), groups = arguments[6].toInt();
  if (!is_plain(input) || !input.is_contiguous() ||
      c10::isReducedFloatingType(input.scalar_type()) || groups < 1 || channels % groups != 0 ||
      input.numel() != batch * channels * pixels || input.numel() == 0) {
    return kLeft;
  }
  const auto dtype = statistics_dtype(input, {weight, bias});
  const std::vector<int64_t> per_channel{channels};
  if (dtype == ScalarType::Undefined || !has_sizes(weight, per_channel) ||
      !has_sizes(bias, per_channel)) {
    return kLeft;
  }
  return {one(contiguous(input.sizes().vec(), input.scalar_type())),
          one(contiguous({batch, groups}, dtype)), one(contiguous({batch, groups}, dtype))};
}

ResultShapes dot(Arguments arguments) {
  const at::Tensor &self = arguments[0].toTensor(), &other = arguments[1].toTensor();
  if (self.dim() != 1 || other.dim() != 1 || self.size(0) != other.size(0) ||
      self.scalar_type() != other.scalar_type()) {
    return kLeft;
  }
  return {one(contiguous({}, self.scalar_type()))};
}

// Variance and standard deviation, and with `results` of 2 the mean beside them.
template <size_t results>
ResultShapes spread(Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  if (!is_plain(input) || !c10::isFloatingType(input.scalar_type()) || !input.is_contiguous()) {
    return kLeft;
  }
  const auto rank = static_cast<size_t>(input.dim());
  std::vector<bool> reduced(rank, arguments[1].isNone() || arguments[1].toDimVector().empty());
  if (!arguments[1].isNone()) {
    for (int64_t dim : arguments[1].toDimVector()) {
      if (dim < 0) dim += input.dim();
      if (dim < 0 || dim >= input.dim()) return kLeft;
      const auto at = static_cast<size_t>(dim);
      if (reduced[at]) return kLeft;  // twice
      reduced[at] = true;
    }
  }
  const bool keeps_dims = arguments[3].toBool();
  std::vector<int64_t> sizes;
  for (size_t dim = 0; dim < rank; ++dim) {
    if (!reduced[dim]) {
      sizes.push_back(input.sizes()[dim]);
    } else if (keeps_dims) {
      sizes.push_back(1);
    }
  }
  return ResultShapes(results, one(contiguous(std::move(sizes), input.scalar_type())));
}

}  // namespace

ResultShapes native_shapes(const c10::OperatorHandle& op, Arguments arguments) {
  static const auto* const functions = new std::unordered_map<c10::OperatorName, Function>{
      {{"aten::abs", ""}, absolute},
      {{"aten::abs", "out"}, absolute},
      {{"aten::angle", ""}, floating_unary},
      {{"aten::dot", ""}, dot},
      {{"aten::floor_divide", ""}, floor_division},
      {{"aten::floor_divide", "out"}, floor_division},
      {{"aten::hardswish", ""}, floating_unary},
      {{"aten::hardtanh", ""}, floating_unary},
      {{"aten::isnan", ""}, boolean_unary},
      {{"aten::logical_and", ""}, boolean_binary},
      {{"aten::logical_and", "out"}, boolean_binary},
      {{"aten::logical_not", ""}, boolean_unary},
      {{"aten::logical_not", "out"}, boolean_unary},
      {{"aten::logical_or", ""}, boolean_binary},
      {{"aten::logical_or", "out"}, boolean_binary},
      {{"aten::logical_xor", ""}, boolean_binary},
      {{"aten::logical_xor", "out"}, boolean_binary},
      {{"aten::logit", ""}, floating_unary},
      {{"aten::native_batch_norm", ""}, batch_norm},
      {{"aten::native_group_norm", ""}, group_norm},
      {{"aten::native_layer_norm", ""}, layer_norm},
      {{"aten::relu", ""}, floating_unary},
      {{"aten::std", "correction"}, spread<1>},
      {{"aten::std_mean", "correction"}, spread<2>},
      {{"aten::var", "correction"}, spread<1>},
      {{"aten::var_mean", "correction"}, spread<2>},
      {{"aten::where", "self"}, selection},
      {{"aten::where", "self_out"}, selection},
  };
  const auto found = functions->find(op.operator_name());
  return found == functions->end() ? kLeft : found->second(arguments);
}

}  // namespace gapless::torch_device
