// RMS norms in one pass over memory: computed in float32 and rounded once, to nearest. vLLM's
// kernels for the CPU cut bfloat16 off where the processor has no instruction that rounds.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "torch/avx2_vector.h"
#include "torch/spin_team.h"

namespace gapless::torch_device {
namespace {

// Numbers of a piece: more work than it costs to share it.
constexpr int64_t kPiece = 16 << 10;
constexpr int64_t kVector = 8;

// sums = x (+ residual, which takes the sum), and its squares' sum.
template <typename T>
float add(const T* x, T* residual, int64_t from, int64_t count, float* sums) {
  float squares = 0;
  for (int64_t i = from; i < count; ++i) {
    sums[i] = static_cast<float>(x[i]);
    if (residual) {
      sums[i] += static_cast<float>(residual[i]);
      residual[i] = static_cast<T>(sums[i]);
    }
    squares += sums[i] * sums[i];
  }
  return squares;
}

template <typename T>
void scale(const float* sums, float factor, const T* weight, int64_t from, int64_t count, T* out) {
  for (int64_t i = from; i < count; ++i) {
    out[i] = static_cast<T>(sums[i] * factor * static_cast<float>(weight[i]));
  }
}

#if defined(__x86_64__)

template <typename T>
GAPLESS_AVX2 float add_vectors(const T* x, T* residual, int64_t count, float* sums) {
  __m256 squares = _mm256_setzero_ps();
  int64_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    __m256 sum = load(x + i);
    if (residual) {
      sum = _mm256_add_ps(sum, load(residual + i));
      store(sum, residual + i);
    }
    _mm256_storeu_ps(sums + i, sum);
    squares = _mm256_fmadd_ps(sum, sum, squares);
  }
  float parts[kVector], total = 0;
  _mm256_storeu_ps(parts, squares);
  for (const float part : parts) total += part;
  return total + add(x, residual, i, count, sums);
}

template <typename T>
GAPLESS_AVX2 void scale_vectors(const float* sums, float factor, const T* weight, int64_t count,
                                T* out) {
  const __m256 factors = _mm256_set1_ps(factor);
  int64_t i = 0;
  for (; i + kVector <= count; i += kVector) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(sums + i), factors);
    store(_mm256_mul_ps(scaled, load(weight + i)), out + i);
  }
  scale(sums, factor, weight, i, count, out);
}

#endif

template <typename T>
void norm_row(const T* x, T* residual, const T* weight, int64_t count, float epsilon, float* sums,
              T* out) {
  const auto factor = [&](float squares) {
    return 1 / std::sqrt(squares / static_cast<float>(count) + epsilon);
  };
#if defined(__x86_64__)
  if (has_avx2()) {
    scale_vectors(sums, factor(add_vectors(x, residual, count, sums)), weight, count, out);
    return;
  }
#endif
  scale(sums, factor(add(x, residual, 0, count, sums)), weight, 0, count, out);
}

template <typename T>
void norm_rows(const at::Tensor& x, T* residual, const at::Tensor& weight, double epsilon,
               at::Tensor& out) {
  const int64_t width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
  if (rows == 0) return;
  const int64_t together = std::max<int64_t>(1, kPiece / width);
  const T* const from = x.const_data_ptr<T>();
  const T* const by = weight.const_data_ptr<T>();
  T* const to = out.mutable_data_ptr<T>();
  share_pieces((rows + together - 1) / together, at::get_num_threads(), [&](int64_t index) {
    thread_local std::vector<float> sums;
    sums.resize(static_cast<size_t>(width));
    for (int64_t row = index * together; row < std::min((index + 1) * together, rows); ++row) {
      norm_row(from + row * width, residual ? residual + row * width : nullptr, by, width,
               static_cast<float>(epsilon), sums.data(), to + row * width);
    }
  });
}

void norm(const at::Tensor& x, at::Tensor* residual, const at::Tensor& weight, double epsilon,
          at::Tensor& out) {
  const auto fits = [&](const at::Tensor& other) {
    return other.sizes() == x.sizes() && other.scalar_type() == x.scalar_type() &&
           other.is_contiguous();
  };
  TORCH_CHECK(x.dim() > 0 && x.is_contiguous() && fits(out) && (!residual || fits(*residual)) &&
                  weight.dim() == 1 && weight.size(0) == x.size(-1) && weight.is_contiguous() &&
                  weight.scalar_type() == x.scalar_type(),
              "rms_norm: x ", x.sizes(), " of ", x.scalar_type(), ", out ", out.sizes(),
              " and the weight ", weight.sizes(), " of ", weight.scalar_type(), " do not fit");
  const auto compute = [&]<typename T>(T) {
    norm_rows<T>(x, residual ? residual->mutable_data_ptr<T>() : nullptr, weight, epsilon, out);
  };
  switch (x.scalar_type()) {
    case at::kFloat:
      return compute(float{});
    case at::kHalf:
      return compute(c10::Half{});
    case at::kBFloat16:
      return compute(c10::BFloat16{});
    default:
      TORCH_CHECK(false, "rms_norm: ", x.scalar_type(), "; it is for float32, float16, bfloat16");
  }
}

// out = x / sqrt(mean(x^2) + epsilon) * weight, over the last dimension.
void rms_norm(at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  norm(x, nullptr, weight, epsilon, out);
}

// residual = x + residual, x = rms_norm(x + residual); the norm is that of the sum not rounded.
void fused_add_rms_norm(at::Tensor& x, at::Tensor& residual, const at::Tensor& weight,
                        double epsilon) {
  norm(x, &residual, weight, epsilon, x);
}

TORCH_LIBRARY_FRAGMENT(gapless, m) {
  m.def("rms_norm(Tensor(a!) out, Tensor x, Tensor weight, float epsilon) -> ()");
  m.def(
      "fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float epsilon) -> ()");
}

TORCH_LIBRARY_IMPL(gapless, CPU, m) {
  m.impl("rms_norm", &rms_norm);
  m.impl("fused_add_rms_norm", &fused_add_rms_norm);
}

}  // namespace
}  // namespace gapless::torch_device
