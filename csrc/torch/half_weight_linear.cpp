// A linear layer in float32 whose weight lies in float16: a step of few rows waits for the weights
// to be read, and half of the bytes is half of the wait.

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "torch/avx2.h"
#include "torch/half_weight_kernel.h"
#include "torch/spin_team.h"

namespace gapless::torch_device {
namespace {

// What a piece's rows take at most, so that they stay in a core's second cache from panel to panel.
constexpr int64_t kRowsBytes = 192 << 10;
constexpr int64_t kMostRows = 96;
// What is read of the weight by a piece at least: taking one costs a tenth of a microsecond.
constexpr int64_t kPieceBytes = 64 << 10;

template <typename T>
void store(const float* sums, int64_t rows, int64_t outputs, float scale, const float* bias, T* out,
           int64_t stride) {
  for (int64_t row = 0; row < rows; ++row, sums += kPanel, out += stride) {
    if (bias) {
      for (int64_t i = 0; i < outputs; ++i) out[i] = static_cast<T>(sums[i] * scale + bias[i]);
    } else {
      for (int64_t i = 0; i < outputs; ++i) out[i] = static_cast<T>(sums[i] * scale);
    }
  }
}

// out [rows, outputs] = x [rows, inputs] times the weight's panels times the scale, plus the bias.
void half_weight_linear(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight,
                        double scale, const std::optional<at::Tensor>& bias) {
  TORCH_CHECK(has_avx2(), "this processor has no AVX2, FMA and F16C");
  const int64_t count = x.size(0), inputs = x.size(1), outputs = out.size(1);
  const int64_t panels = weight.size(0);
  TORCH_CHECK(weight.scalar_type() == at::kHalf && weight.is_contiguous() && weight.dim() == 4 &&
                  weight.size(1) == 2 && weight.size(2) == inputs && weight.size(3) == kPanel / 2 &&
                  panels == (outputs + kPanel - 1) / kPanel && out.size(0) == count &&
                  out.is_contiguous(),
              "half_weight_linear: out ", out.sizes(), ", x ", x.sizes(), " and the weight ",
              weight.sizes(), " do not fit");
  if (count == 0) return;
  const at::Tensor rows = x.to(at::kFloat).contiguous();
  const at::Tensor added = bias ? bias->to(at::kFloat).contiguous() : at::Tensor();
  const auto* from = rows.const_data_ptr<float>();
  const auto* bits = reinterpret_cast<const uint16_t*>(weight.const_data_ptr());
  const float* plus = bias ? added.const_data_ptr<float>() : nullptr;
  const int64_t block = std::clamp<int64_t>(
      kRowsBytes / (inputs * static_cast<int64_t>(sizeof(float))), 1, std::min(count, kMostRows));
  const int64_t blocks = (count + block - 1) / block;
  const int64_t panel_bytes = inputs * kPanel * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t together = std::clamp<int64_t>(kPieceBytes / panel_bytes, 1, panels);
  const int64_t groups = (panels + together - 1) / together;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, out.scalar_type(), "half_weight_linear", [&] {
        scalar_t* to = out.mutable_data_ptr<scalar_t>();
        const auto piece = [&](int64_t index) {
          alignas(64) float sums[kMostRows * kPanel];
          const int64_t row = index / groups * block, here = std::min(block, count - row);
          const int64_t first = index % groups * together;
          for (int64_t p = first; p < std::min(first + together, panels); ++p) {
            multiply_panel(from + row * inputs, here, bits + p * inputs * kPanel, inputs, sums);
            const int64_t output = p * kPanel;
            store(sums, here, std::min(kPanel, outputs - output), static_cast<float>(scale),
                  plus ? plus + output : nullptr, to + row * outputs + output, outputs);
          }
        };
        share_pieces(blocks * groups, at::get_num_threads(), piece);
      });
}

TORCH_LIBRARY_FRAGMENT(gapless, m) {
  m.def(
      "half_weight_linear(Tensor(a!) out, Tensor x, Tensor weight, float scale, Tensor? bias) "
      "-> ()");
}

TORCH_LIBRARY_IMPL(gapless, CPU, m) { m.impl("half_weight_linear", &half_weight_linear); }

}  // namespace
}  // namespace gapless::torch_device
