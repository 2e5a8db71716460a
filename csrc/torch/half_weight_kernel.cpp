#include "torch/half_weight_kernel.h"

#include "torch/avx2.h"

#if defined(__x86_64__)

#include <immintrin.h>

// The loops over registers have to be unrolled, or what they hold lies in memory.
#pragma GCC optimize("O3")

namespace gapless::torch_device {
namespace {

constexpr int64_t kVector = 8;  // floats
constexpr int64_t kHalf = kPanel / 2;
constexpr int64_t kMostRows = 6;
constexpr int64_t kFewRows = 3;

// Sixteen registers: Rows x Vectors sums, a row's number, and the weight's numbers. Two vectors are
// a half of a panel, four are both.
template <int Rows, int Vectors>
GAPLESS_AVX2 void sum(const float* rows, const uint16_t* weight, int64_t inputs, float* sums) {
  const int64_t other = (inputs - 1) * kHalf;  // from the end of a vector pair to the other half's
  __m256 sum[Rows][Vectors];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm256_setzero_ps();
  }
  for (int64_t i = 0; i < inputs; ++i, weight += kHalf) {
    __m256 numbers[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const uint16_t* from = weight + v * kVector + (v < 2 ? 0 : other);
      numbers[v] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const __m256 number = _mm256_broadcast_ss(rows + r * inputs + i);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[r][v] = _mm256_fmadd_ps(number, numbers[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      _mm256_storeu_ps(sums + r * kPanel + v * kVector, sum[r][v]);
    }
  }
}

}  // namespace

void multiply_panel(const float* rows, int64_t count, const uint16_t* panel, int64_t inputs,
                    float* sums) {
  using Sum = void (*)(const float*, const uint16_t*, int64_t, float*);
  static constexpr Sum kBoth[kFewRows] = {sum<1, 4>, sum<2, 4>, sum<3, 4>};
  static constexpr Sum kOne[kMostRows] = {sum<1, 2>, sum<2, 2>, sum<3, 2>,
                                          sum<4, 2>, sum<5, 2>, sum<6, 2>};
  if (count <= kFewRows) {
    if (count > 0) kBoth[count - 1](rows, panel, inputs, sums);
    return;
  }
  for (int half = 0; half < 2; ++half, panel += inputs * kHalf) {
    for (int64_t row = 0; row < count;) {
      // Two groups of about the same size rather than a large one and a small one.
      const int64_t left = count - row;
      const int64_t taken = left <= kMostRows      ? left
                            : left < 2 * kMostRows ? (left + 1) / 2
                                                   : kMostRows;
      kOne[taken - 1](rows + row * inputs, panel, inputs, sums + row * kPanel + half * kHalf);
      row += taken;
    }
  }
}

}  // namespace gapless::torch_device

#else

namespace gapless::torch_device {

void multiply_panel(const float*, int64_t, const uint16_t*, int64_t, float*) {}

}  // namespace gapless::torch_device

#endif
