// Brings a linear layer's weight into the panels of float16 that the kernel reads.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "torch/avx2_vector.h"
#include "torch/half_weight_kernel.h"

namespace gapless::torch_device {
namespace {

constexpr int64_t kHalf = kPanel / 2;
constexpr int64_t kVector = 8;

template <typename T>
void to_half(const T* from, int64_t count, float scale, c10::Half* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]) * scale;
}

#if defined(__x86_64__)

template <typename T>
GAPLESS_AVX2 void to_half_avx2(const T* from, int64_t count, float scale, c10::Half* to) {
  const __m256 factor = _mm256_set1_ps(scale);
  int64_t i = 0;
  for (; i + kVector <= count; i += kVector) store(_mm256_mul_ps(load(from + i), factor), to + i);
  to_half(from + i, count - i, scale, to + i);
}

#endif

// One half of a panel: `outputs` rows of the weight side by side, zeros beside them.
template <typename T>
void pack_half(const T* weight, int64_t outputs, int64_t inputs, float scale, c10::Half* rows,
               c10::Half* to) {
  for (int64_t output = 0; output < outputs; ++output) {
    const T* const from = weight + output * inputs;
#if defined(__x86_64__)
    if (has_avx2()) {
      to_half_avx2(from, inputs, scale, rows + output * inputs);
      continue;
    }
#endif
    to_half(from, inputs, scale, rows + output * inputs);
  }
  if (outputs < kHalf) std::fill(rows + outputs * inputs, rows + kHalf * inputs, c10::Half(0.0F));
  for (int64_t i = 0; i < inputs; ++i) {
    for (int64_t output = 0; output < kHalf; ++output) *to++ = rows[output * inputs + i];
  }
}

// [panels, 2, inputs, kPanel / 2] of weight [outputs, inputs] times the scale.
at::Tensor half_weight_pack(const at::Tensor& weight, double scale) {
  TORCH_CHECK(weight.dim() == 2, "half_weight_pack: a weight of ", weight.sizes(),
              " is no matrix [outputs, inputs]");
  const at::Tensor matrix = weight.contiguous();
  const int64_t outputs = matrix.size(0), inputs = matrix.size(1);
  const int64_t panels = (outputs + kPanel - 1) / kPanel;
  at::Tensor packed = at::empty({panels, 2, inputs, kHalf}, matrix.options().dtype(at::kHalf));
  auto* const to = packed.mutable_data_ptr<c10::Half>();
  std::vector<c10::Half> rows(static_cast<size_t>(kHalf * inputs));
  const auto pack = [&](const auto* from) {
    for (int64_t half = 0; half < 2 * panels; ++half) {
      const int64_t first = std::min(half * kHalf, outputs);
      pack_half(from + first * inputs, std::min(kHalf, outputs - first), inputs,
                static_cast<float>(scale), rows.data(), to + half * kHalf * inputs);
    }
  };
  switch (matrix.scalar_type()) {
    case at::kFloat:
      pack(matrix.const_data_ptr<float>());
      break;
    case at::kHalf:
      pack(matrix.const_data_ptr<c10::Half>());
      break;
    case at::kBFloat16:
      pack(matrix.const_data_ptr<c10::BFloat16>());
      break;
    default:
      TORCH_CHECK(false, "half_weight_pack: a weight of ", matrix.scalar_type(),
                  "; float32, float16 and bfloat16 can be packed");
  }
  return packed;
}

TORCH_LIBRARY_FRAGMENT(gapless, m) {
  m.def("half_weight_pack(Tensor weight, float scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(gapless, CPU, m) { m.impl("half_weight_pack", &half_weight_pack); }

}  // namespace
}  // namespace gapless::torch_device
