#include "torch/decode_attention_kernel.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "torch/avx2.h"
#include "torch/avx2_vector.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

// The loops over registers have to be unrolled, or what they hold lies in memory.
#pragma GCC optimize("O3")

namespace gapless::torch_device {
namespace {

constexpr int64_t kVector = 8;  // floats
constexpr int64_t kLine = 64;   // bytes
constexpr int64_t kAhead = 12;  // rows of a key
constexpr float kNone = -std::numeric_limits<float>::infinity();

// What a tile's arithmetic can wait for meanwhile: rows lie too far from each other for the
// processor to see what comes.
template <typename T>
struct Coming {
  const T* keys;    // of the next tile, as far from each other as this one's
  const T* values;  // of this tile, one after the other
};

template <int Vectors, typename T>
GAPLESS_AVX2 inline void fetch(const T* from) {
  constexpr int64_t kBytes = Vectors * kVector * static_cast<int64_t>(sizeof(T));
#pragma GCC unroll 8
  for (int64_t at = 0; at < kBytes; at += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + at, _MM_HINT_T0);
  }
}

// The scores of Vectors x 8 tokens that lie side by side.
template <int Heads, int Vectors, typename T>
GAPLESS_AVX2 inline void score(const float* queries, const T* keys, int64_t dim,
                               int64_t block_tokens, Coming<T> coming, float* scores,
                               int64_t stride) {
  __m256 sum[Heads][Vectors];
#pragma GCC unroll 8
  for (int h = 0; h < Heads; ++h) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[h][v] = _mm256_setzero_ps();
  }
  for (int64_t d = 0; d < dim; ++d, keys += block_tokens) {
    fetch<Vectors>(keys + kAhead * block_tokens);
    fetch<Vectors>(coming.keys);
    fetch<Vectors>(coming.values);
    coming.keys += block_tokens;
    coming.values += Vectors * kVector;
    __m256 query[Heads];
#pragma GCC unroll 8
    for (int h = 0; h < Heads; ++h) query[h] = _mm256_broadcast_ss(queries + h * dim + d);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const __m256 key = load(keys + v * kVector);
#pragma GCC unroll 8
      for (int h = 0; h < Heads; ++h) sum[h][v] = _mm256_fmadd_ps(query[h], key, sum[h][v]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < Heads; ++h) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      _mm256_storeu_ps(scores + h * stride + v * kVector, sum[h][v]);
    }
  }
}

// Adds the values of tokens of one block, Vectors x 8 numbers of each.
template <int Heads, int Vectors, typename T>
GAPLESS_AVX2 inline void add_values(const float* weights, int64_t stride, const T* values,
                                    int64_t tokens, int64_t dim, float* sums) {
  __m256 sum[Heads][Vectors];
#pragma GCC unroll 8
  for (int h = 0; h < Heads; ++h) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sum[h][v] = _mm256_loadu_ps(sums + h * dim + v * kVector);
  }
  for (int64_t t = 0; t < tokens; ++t, values += dim) {
    __m256 weight[Heads];
#pragma GCC unroll 8
    for (int h = 0; h < Heads; ++h) weight[h] = _mm256_broadcast_ss(weights + h * stride + t);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const __m256 value = load(values + v * kVector);
#pragma GCC unroll 8
      for (int h = 0; h < Heads; ++h) sum[h][v] = _mm256_fmadd_ps(weight[h], value, sum[h][v]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < Heads; ++h) {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) _mm256_storeu_ps(sums + h * dim + v * kVector, sum[h][v]);
  }
}

// exp(scores - the largest of them) in their place, for a whole number of vectors.
GAPLESS_AVX2 void weigh(float* scores, int64_t count, float& most, float& total) {
  __m256 largest = _mm256_loadu_ps(scores);
  for (int64_t i = kVector; i < count; i += kVector) {
    largest = _mm256_max_ps(largest, _mm256_loadu_ps(scores + i));
  }
  float parts[kVector];
  _mm256_storeu_ps(parts, largest);
  most = *std::max_element(parts, parts + kVector);
  const __m256 shift = _mm256_set1_ps(most);
  __m256 sum = _mm256_setzero_ps();
  for (int64_t i = 0; i < count; i += kVector) {
    const __m256 weight = exponential(_mm256_sub_ps(_mm256_loadu_ps(scores + i), shift));
    _mm256_storeu_ps(scores + i, weight);
    sum = _mm256_add_ps(sum, weight);
  }
  _mm256_storeu_ps(parts, sum);
  total = 0;
  for (const float part : parts) total += part;
}

template <int Heads, typename T>
GAPLESS_AVX2 RunSoftmax attend(const float* queries, const CachedHead<T>& cache, int64_t begin,
                               int64_t end, float softcap, float* sums) {
  // Sixteen registers: sums of heads by vectors, the queries' numbers and a key's.
  constexpr int kWide = Heads == 4 ? 2 : 4;
  alignas(64) float scores[Heads][kRun];
  const int64_t dim = cache.dim, width = cache.block_tokens;
  const int64_t first = begin / kVector * kVector;
  const int64_t last = (end + kVector - 1) / kVector * kVector;
  const auto block = [&](int64_t token) {
    return cache.base + cache.blocks[token / width] * cache.block_stride;
  };
  for (int64_t t = first; t < last;) {
    const int64_t place = t % width;
    const bool is_wide = std::min(width - place, last - t) >= kWide * kVector;
    const int64_t next = t + (is_wide ? kWide * kVector : kVector);
    const T* const keys = block(t) + place;
    const Coming<T> coming{next < last ? block(next) + next % width : keys,
                           block(t) + (width + place) * dim};
    float* const to = &scores[0][t - first];
    if (is_wide) {
      score<Heads, kWide>(queries, keys, dim, width, coming, to, kRun);
    } else {
      score<Heads, 1>(queries, keys, dim, width, coming, to, kRun);
    }
    t = next;
  }
  if (cache.newest_key) {
    for (int h = 0; h < Heads; ++h) {
      float sum = 0;
      for (int64_t d = 0; d < dim; ++d) {
        sum = std::fma(queries[h * dim + d], static_cast<float>(cache.newest_key[d]), sum);
      }
      scores[h][end - 1 - first] = sum;
    }
  }
  RunSoftmax softmax;
  for (int h = 0; h < Heads; ++h) {
    if (softcap > 0) {
      for (int64_t i = 0; i < last - first; ++i) {
        scores[h][i] = softcap * std::tanh(scores[h][i] / softcap);
      }
    }
    // What lies beside the tokens in their vectors may be anything.
    std::fill(scores[h], scores[h] + (begin - first), kNone);
    std::fill(scores[h] + (end - first), scores[h] + (last - first), kNone);
    weigh(scores[h], last - first, softmax.most[h], softmax.total[h]);
  }
  std::fill(sums, sums + Heads * dim, 0.0F);
  const int64_t cached = cache.newest_key ? end - 1 : end;
  for (int64_t t = begin; t < end;) {
    const int64_t place = t % width, tokens = t < cached ? std::min(width - place, cached - t) : 1;
    const T* values = cache.newest_value;
    if (t < cached) values = block(t) + (width + place) * dim;
    const float* weights = &scores[0][t - first];
    int64_t d = 0;
    for (; d + kWide * kVector <= dim; d += kWide * kVector) {
      add_values<Heads, kWide>(weights, kRun, values + d, tokens, dim, sums + d);
    }
    for (; d < dim; d += kVector) {
      add_values<Heads, 1>(weights, kRun, values + d, tokens, dim, sums + d);
    }
    t += tokens;
  }
  return softmax;
}

}  // namespace

template <typename T>
RunSoftmax attend_run(const float* queries, int64_t heads, const CachedHead<T>& cache,
                      int64_t begin, int64_t end, float softcap, float* sums) {
  switch (heads) {
    case 1:
      return attend<1>(queries, cache, begin, end, softcap, sums);
    case 2:
      return attend<2>(queries, cache, begin, end, softcap, sums);
    case 3:
      return attend<3>(queries, cache, begin, end, softcap, sums);
    default:
      return attend<4>(queries, cache, begin, end, softcap, sums);
  }
}

}  // namespace gapless::torch_device

#else

namespace gapless::torch_device {

template <typename T>
RunSoftmax attend_run(const float*, int64_t, const CachedHead<T>&, int64_t, int64_t, float,
                      float*) {
  return {};
}

}  // namespace gapless::torch_device

#endif

namespace gapless::torch_device {

template RunSoftmax attend_run(const float*, int64_t, const CachedHead<float>&, int64_t, int64_t,
                               float, float*);
template RunSoftmax attend_run(const float*, int64_t, const CachedHead<c10::Half>&, int64_t,
                               int64_t, float, float*);
template RunSoftmax attend_run(const float*, int64_t, const CachedHead<c10::BFloat16>&, int64_t,
                               int64_t, float, float*);

}  // namespace gapless::torch_device
