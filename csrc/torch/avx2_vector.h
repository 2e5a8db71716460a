// Eight numbers of a row as floats, and their exponential.
#pragma once

#include "torch/avx2.h"

#if defined(__x86_64__)

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <immintrin.h>

namespace gapless::torch_device {

GAPLESS_AVX2 inline __m256 load(const float* from) { return _mm256_loadu_ps(from); }

GAPLESS_AVX2 inline __m256 load(const c10::Half* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

GAPLESS_AVX2 inline __m256 load(const c10::BFloat16* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

GAPLESS_AVX2 inline void store(__m256 numbers, float* to) { _mm256_storeu_ps(to, numbers); }

GAPLESS_AVX2 inline void store(__m256 numbers, c10::Half* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(numbers, _MM_FROUND_TO_NEAREST_INT));
}

// One by one: rounding has to know NaNs, and the compiler makes vectors of it.
GAPLESS_AVX2 inline void store(__m256 numbers, c10::BFloat16* to) {
  float parts[8];
  _mm256_storeu_ps(parts, numbers);
  for (int i = 0; i < 8; ++i) to[i] = c10::BFloat16(parts[i]);
}

// exp(x) for x <= 0: 2^n times a polynomial in the rest, which is within ln(2) / 2 of zero; the
// coefficients are 1/k!, whose error there is below float32's rounding.
GAPLESS_AVX2 inline __m256 exponential(__m256 x) {
  constexpr float kLog2E = 1.44269504F, kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;
  constexpr float kLeast = -87.0F;
  // Both let a NaN through.
  const __m256 counts = _mm256_cmp_ps(x, _mm256_set1_ps(kLeast), _CMP_NLT_UQ);
  x = _mm256_max_ps(_mm256_set1_ps(kLeast), x);
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(kLog2E)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  x = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2High), x);
  x = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2Low), x);
  __m256 sum = _mm256_set1_ps(1.0F / 5040);
  for (const float coefficient : {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1.0F, 1.0F}) {
    sum = _mm256_fmadd_ps(sum, x, _mm256_set1_ps(coefficient));
  }
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_and_ps(_mm256_mul_ps(sum, _mm256_castsi256_ps(power)), counts);
}

}  // namespace gapless::torch_device

#endif
