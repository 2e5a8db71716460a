// silu(x[:, :n]) * x[:, n:] in one pass, in float32 or wider, rounded once.

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "torch/avx2_vector.h"
#include "torch/spin_team.h"

namespace gapless::torch_device {
namespace {

// Numbers of a piece: more work than it costs to share it.
constexpr int64_t kPiece = 8 << 10;
constexpr int64_t kVector = 8;

template <typename T>
void one(const T* x, const T* y, T* out) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto value = static_cast<Wide>(*x);
  *out = static_cast<T>(value / (1 + std::exp(-value)) * static_cast<Wide>(*y));
}

#if defined(__x86_64__)

template <typename T>
GAPLESS_AVX2 void many(const T* x, const T* y, T* out, int64_t count) {
  const __m256 ones = _mm256_set1_ps(1), sign = _mm256_set1_ps(-0.0F);
  int64_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    const __m256 value = load(x + i);
    // Of e^-|x| the exponential is never too large: 1 / (1 + e^-x) = e^x / (1 + e^x).
    const __m256 small = exponential(_mm256_or_ps(value, sign));
    const __m256 above = _mm256_blendv_ps(ones, small, value);
    const __m256 sigmoid = _mm256_div_ps(above, _mm256_add_ps(ones, small));
    store(_mm256_mul_ps(_mm256_mul_ps(value, sigmoid), load(y + i)), out + i);
  }
  for (; i < count; ++i) one(x + i, y + i, out + i);
}

#else

template <typename T>
void many(const T* x, const T* y, T* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) one(x + i, y + i, out + i);
}

#endif

// out [rows, n], x [rows, 2 n].
void silu_and_mul(at::Tensor& out, const at::Tensor& x) {
  TORCH_CHECK(out.dim() == 2 && x.dim() == 2 && x.size(0) == out.size(0) &&
                  x.size(1) == 2 * out.size(1) && out.is_contiguous() && x.is_contiguous() &&
                  x.scalar_type() == out.scalar_type(),
              "silu_and_mul: out ", out.sizes(), " and x ", x.sizes(), " do not fit");
  const int64_t rows = out.size(0), width = out.size(1);
  if (rows == 0 || width == 0) return;
  const int64_t together = std::max<int64_t>(1, kPiece / width);
  const bool is_vectorised = has_avx2();
  AT_DISPATCH_SWITCH(out.scalar_type(), "silu_and_mul",
                     AT_DISPATCH_CASE_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, [&] {
                       const scalar_t* from = x.const_data_ptr<scalar_t>();
                       scalar_t* to = out.mutable_data_ptr<scalar_t>();
                       share_pieces((rows + together - 1) / together, at::get_num_threads(),
                                    [&](int64_t index) {
                                      const int64_t end = std::min((index + 1) * together, rows);
                                      for (int64_t row = index * together; row < end; ++row) {
                                        const scalar_t* const gate = from + row * 2 * width;
                                        if constexpr (!std::is_same_v<scalar_t, double>) {
                                          if (is_vectorised) {
                                            many(gate, gate + width, to + row * width, width);
                                            continue;
                                          }
                                        }
                                        for (int64_t i = 0; i < width; ++i)
                                          one(gate + i, gate + width + i, to + row * width + i);
                                      }
                                    });
                     }));
}

TORCH_LIBRARY_FRAGMENT(gapless, m) { m.def("silu_and_mul(Tensor(a!) out, Tensor x) -> ()"); }

TORCH_LIBRARY_IMPL(gapless, CPU, m) { m.impl("silu_and_mul", &silu_and_mul); }

}  // namespace
}  // namespace gapless::torch_device
