// A linear layer in float32 whose weight lies in 16 bits, as FBGEMM's kernel reads it: a step of
// few rows waits for the weights to be read, and half of the bytes is half of the wait.

#include <ATen/ATen.h>
#include <ATen/native/quantized/PackedParams.h>
#include <torch/library.h>

#include <optional>

namespace gapless::torch_device {
namespace {

using Weight = c10::intrusive_ptr<LinearPackedParamsBase>;

// out [rows, outputs] = x [rows, inputs] times the weight times the scale, plus the bias.
void half_weight_linear(at::Tensor& out, const at::Tensor& x, const Weight& weight, double scale,
                        const std::optional<at::Tensor>& bias) {
  at::Tensor rows = x.to(at::kFloat);
  if (scale != 1) rows = at::mul(rows, scale);  // fewer numbers than there are products
  if (out.scalar_type() == at::kFloat) {
    weight->apply_dynamic_out(rows, out, /*reduce_range=*/false);
    if (bias) out.add_(*bias);
    return;
  }
  at::Tensor exact = weight->apply_dynamic(rows);
  if (bias) exact.add_(*bias);
  out.copy_(exact);
}

TORCH_LIBRARY_FRAGMENT(gapless, m) {
  m.def(
      "half_weight_linear(Tensor(a!) out, Tensor x, "
      "__torch__.torch.classes.quantized.LinearPackedParamsBase weight, float scale, "
      "Tensor? bias) -> ()");
}

TORCH_LIBRARY_IMPL(gapless, CPU, m) { m.impl("half_weight_linear", &half_weight_linear); }

}  // namespace
}  // namespace gapless::torch_device
