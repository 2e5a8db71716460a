// Scaled dot product attention: PyTorch's choice of kernel for the CPU, made for our tensors.

#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "torch/alias.h"
#include "torch/fallback.h"

namespace gapless::torch_device {
namespace {

int64_t choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
               std::optional<double> scale, bool enable_gqa) {
  // Only shapes, dtypes and whether the mask wants a gradient matter; no memory is read.
  std::optional<at::Tensor> mask_alias;
  if (mask.has_value() && mask->defined()) {
    mask_alias = alias_on_cpu(*mask);
    if (mask->requires_grad()) mask_alias->set_requires_grad(true);
  }
  return at::_fused_sdp_choice(alias_on_cpu(query), alias_on_cpu(key), alias_on_cpu(value),
                               mask_alias, dropout_p, is_causal, scale, enable_gqa);
}

// The kernel has no shape function outside Python, and its results are laid out with the sequence
// before the heads.
std::tuple<at::Tensor, at::Tensor> flash_attention(const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& value, double dropout_p,
                                                   bool is_causal,
                                                   const std::optional<at::Tensor>& mask,
                                                   std::optional<double> scale) {
  const c10::DeviceGuard guard(query.device());
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      "aten::_scaled_dot_product_flash_attention_for_cpu", "");
  const auto batch = query.size(0), heads = query.size(1), length = query.size(2);
  auto output = at::empty({batch, length, heads, value.size(3)}, query.options()).transpose(1, 2);
  const auto sums_dtype = at::toOpMathType(query.scalar_type());
  auto sums = at::empty({batch, length, heads}, query.options().dtype(sums_dtype)).transpose(1, 2);
  submit_functional(op, {query, key, value, dropout_p, is_causal, mask, scale}, {output, sums});
  return {std::move(output), std::move(sums)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_flash_attention_for_cpu", flash_attention);
}

}  // namespace
}  // namespace gapless::torch_device

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &gapless::torch_device::choice)
}
