// Convolutions: PyTorch gives a device it does not know one operator to override.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "torch/fallback.h"

namespace gapless::torch_device {
namespace {

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::IntArrayRef stride,
                       c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef output_padding, int64_t groups) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  const c10::DeviceGuard guard(input.device());
  const torch::jit::Stack arguments{input,    weight,     bias,           stride, padding,
                                    dilation, transposed, output_padding, groups};
  return submit_inferred(op, arguments, input.device())[0].toTensor();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
    c10::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> output_mask) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  const c10::DeviceGuard guard(input.device());
  const std::vector<int64_t> bias_sizes{grad_output.size(1)};
  const c10::List<bool> mask({output_mask[0], output_mask[1], output_mask[2]});
  const torch::jit::Stack arguments{grad_output,    input,   weight,   bias_sizes,
                                    stride,         padding, dilation, transposed,
                                    output_padding, groups,  mask};
  const auto results = submit_inferred(op, arguments, input.device());
  return {results[0].toTensor(), results[1].toTensor(), results[2].toTensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

}  // namespace
}  // namespace gapless::torch_device
