// A layer of experts, as one piece of work: which expert gets which tokens is known on the device
// only, so that the loop over the experts runs on the stream's thread.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <optional>
#include <string>

namespace gapless::torch_device {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor row(const OptionalTensor& tensor, int64_t index) {
  return tensor ? OptionalTensor(tensor->select(0, index)) : std::nullopt;
}

at::Tensor gated(const at::Tensor& gate, const std::string& activation) {
  if (activation == "silu") return at::silu(gate);
  if (activation == "gelu") return at::gelu(gate);
  if (activation == "gelu_tanh") return at::gelu(gate, "tanh");
  TORCH_CHECK(false, "fused_experts: the activation \"", activation,
              "\" is none of silu, gelu, gelu_tanh");
}

void fused_experts(at::Tensor& out, const at::Tensor& x, const at::Tensor& up,
                   const at::Tensor& down, const OptionalTensor& up_bias,
                   const OptionalTensor& down_bias, const at::Tensor& weights,
                   const at::Tensor& experts, std::string activation, bool weight_on_input) {
  out.zero_();
  for (int64_t expert = 0; expert < up.size(0); ++expert) {
    const at::Tensor chosen = (experts == expert).nonzero();
    if (chosen.size(0) == 0) continue;
    const at::Tensor tokens = chosen.select(1, 0), places = chosen.select(1, 1);
    const at::Tensor weight = weights.index({tokens, places}).unsqueeze(1).to(x.scalar_type());
    at::Tensor hidden = x.index_select(0, tokens);
    if (weight_on_input) hidden = hidden * weight;
    const auto halves = at::linear(hidden, up.select(0, expert), row(up_bias, expert)).chunk(2, -1);
    hidden = gated(halves[0], activation).mul_(halves[1]);
    at::Tensor result = at::linear(hidden, down.select(0, expert), row(down_bias, expert));
    if (!weight_on_input) result = result.mul_(weight);
    out.index_add_(0, tokens, result);
  }
}

TORCH_LIBRARY_FRAGMENT(gapless, m) {
  m.def(
      "fused_experts(Tensor(a!) out, Tensor x, Tensor up, Tensor down, Tensor? up_bias, Tensor? "
      "down_bias, Tensor weights, Tensor experts, str activation, bool weight_on_input) -> ()");
}

TORCH_LIBRARY_IMPL(gapless, CPU, m) { m.impl("fused_experts", &fused_experts); }

}  // namespace
}  // namespace gapless::torch_device
