// Dropout as compiled code calls it. The CPU's kernel draws from the host's generator, whoever uses
// that at the time; this one draws on the device, and what `torch.dropout` draws.

#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace gapless::torch_device {
namespace {

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double probability,
                                                  std::optional<bool> train) {
  const auto boolean = input.options().dtype(at::kBool);
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, boolean)};
  const double kept = 1.0 - probability;
  auto mask = at::empty_like(input, boolean).bernoulli_(kept);
  return {input.mul(mask).mul_(kept == 0.0 ? 0.0 : 1.0 / kept), mask};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("native_dropout", &native_dropout); }

}  // namespace
}  // namespace gapless::torch_device
