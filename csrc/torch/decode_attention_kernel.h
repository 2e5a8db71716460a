// Attention of one new token of a sequence to what is cached of it, in float32, with AVX2.
#pragma once

#include <cstdint>

namespace gapless::torch_device {

// Tokens of which one call sees at most so many; where a sequence is divided depends on nothing
// else, so that its sums do not depend on threads or on other sequences.
constexpr int64_t kRun = 512;
constexpr int64_t kMostHeads = 4;

// A head's cache of one sequence: in each block the keys, [dim, block_tokens], and then the values,
// [block_tokens, dim].
template <typename T>
struct CachedHead {
  const T* base = nullptr;
  int64_t block_stride = 0;         // elements
  const int32_t* blocks = nullptr;  // the sequence's
  int64_t block_tokens = 0;         // a multiple of 16
  int64_t dim = 0;                  // a multiple of 16
  // The last token's [dim] where it is not cached yet: what is just written into as many lines as a
  // key has numbers would have to be waited for.
  const T* newest_key = nullptr;
  const T* newest_value = nullptr;
};

// What of the softmax is known after a run of tokens, for each query head.
struct RunSoftmax {
  float most[kMostHeads];   // the largest score
  float total[kMostHeads];  // of exp(score - most)
};

// sums [heads, dim] = exp(scores - most) times the values of the tokens from `begin` to `end`,
// which are of one run; scores are queries [heads, dim] times keys, capped by softcap * tanh(score
// / softcap) where that is positive.
template <typename T>
RunSoftmax attend_run(const float* queries, int64_t heads, const CachedHead<T>& cache,
                      int64_t begin, int64_t end, float softcap, float* sums);

}  // namespace gapless::torch_device
