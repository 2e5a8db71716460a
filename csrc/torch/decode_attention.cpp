// Paged attention of a decode step, in which each sequence has one new token: stores its key and
// its value and attends to all that is cached, as vLLM's kernel for the CPU does and in its layout
// of the cache ("vec"), but without the tiles of queries that a prompt is worth.

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "torch/avx2.h"
#include "torch/decode_attention_kernel.h"
#include "torch/spin_team.h"

namespace gapless::torch_device {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// Multiplications below which a second thread brings nothing.
constexpr int64_t kAlone = 1 << 16;

// One key-value head of one sequence, and the tokens of one run.
struct Piece {
  int64_t row, sequence, head, begin, end;
  int64_t partial;  // where what is found goes; -1: the run is the only one
};

struct Step {
  at::Tensor query, cache, output, lengths, table;
  OptionalTensor key, value, slots;
  int64_t group;  // query heads of a key-value head
  float scale, softcap;

  int64_t dim() const { return query.size(2); }
  int64_t heads() const { return cache.size(1); }
  int64_t block_tokens() const { return cache.size(2); }
};

void check(const Step& step, const at::Tensor& starts) {
  const at::Tensor& query = step.query;
  const at::Tensor& cache = step.cache;
  TORCH_CHECK(has_avx2(), "this processor has no AVX2, FMA and F16C");
  const auto fits = [&](const OptionalTensor& part) {
    return !part || (part->dim() == 3 && part->size(0) >= query.size(0) &&
                     part->size(1) == cache.size(1) && part->size(2) == query.size(2) &&
                     part->stride(2) == 1 && part->scalar_type() == cache.scalar_type());
  };
  TORCH_CHECK(
      query.dim() == 3 && query.stride(2) == 1 && query.size(2) % 16 == 0 && cache.dim() == 4 &&
          cache.scalar_type() == query.scalar_type() && cache.size(3) == 2 * query.size(2) &&
          cache.size(2) % 16 == 0 && cache.stride(3) == 1 && cache.stride(2) == cache.size(3) &&
          query.size(1) % cache.size(1) == 0 && step.output.sizes() == query.sizes() &&
          step.output.stride(2) == 1 && step.output.scalar_type() == query.scalar_type() &&
          fits(step.key) && fits(step.value) && step.key.has_value() == step.slots.has_value() &&
          step.value.has_value() == step.slots.has_value() && starts.is_contiguous() &&
          step.lengths.is_contiguous() && step.table.stride(-1) == 1,
      "decode_attention: query ", query.sizes(), ", output ", step.output.sizes(),
      " and the cache ", cache.sizes(), " of ", cache.scalar_type(), " do not fit");
}

struct Pieces {
  std::vector<Piece> all;
  int64_t partials = 0;
  int64_t tokens = 0;
};

Pieces divide(const Step& step, const at::Tensor& starts, int64_t window) {
  Pieces pieces;
  const auto* start = starts.const_data_ptr<int32_t>();
  const auto* length = step.lengths.const_data_ptr<int32_t>();
  const int64_t sequences = std::min(starts.size(0) - 1, step.lengths.size(0));
  for (int64_t s = 0; s < sequences; ++s) {
    // Sequences that fill a batch up have no token.
    if (start[s + 1] == start[s] || start[s] >= step.query.size(0) || length[s] <= 0) continue;
    TORCH_CHECK(start[s + 1] - start[s] == 1, "decode_attention: sequence ", s, " has ",
                start[s + 1] - start[s], " new tokens; it is for one");
    const int64_t end = length[s], begin = window > 0 ? std::max<int64_t>(0, end - window) : 0;
    const int64_t runs = (end - 1) / kRun - begin / kRun + 1;
    for (int64_t head = 0; head < step.heads(); ++head) {
      for (int64_t from = begin; from < end;) {
        const int64_t to = std::min(end, (from / kRun + 1) * kRun);
        pieces.all.push_back(
            {start[s], s, head, from, to, runs > 1 ? pieces.partials++ : int64_t{-1}});
        pieces.tokens += to - from;
        from = to;
      }
    }
  }
  return pieces;
}

// A token's key goes into a column of its block, its value into a row.
template <typename T>
void store(const Step& step, const Piece& piece, const CachedHead<T>& token) {
  const int64_t slot = step.slots->const_data_ptr<int64_t>()[piece.row];
  if (slot < 0) return;
  const int64_t dim = step.dim(), width = step.block_tokens(), place = slot % width;
  T* const block = step.cache.mutable_data_ptr<T>() + slot / width * step.cache.stride(0) +
                   piece.head * step.cache.stride(1);
  for (int64_t d = 0; d < dim; ++d) block[d * width + place] = token.newest_key[d];
  std::memcpy(block + (width + place) * dim, token.newest_value,
              static_cast<size_t>(dim) * sizeof(T));
}

template <typename T>
void write(const Step& step, int64_t row, int64_t head, const float* sums, const float* total) {
  for (int64_t g = 0; g < step.group; ++g, sums += step.dim()) {
    T* const to = step.output.mutable_data_ptr<T>() + row * step.output.stride(0) +
                  (head * step.group + g) * step.output.stride(1);
    for (int64_t d = 0; d < step.dim(); ++d) to[d] = static_cast<T>(sums[d] / total[g]);
  }
}

// What a piece finds: for each head of the group its sums, then the largest scores, then the
// totals.
template <typename T>
void attend_piece(const Step& step, const Piece& piece, float* found) {
  const int64_t dim = step.dim(), group = step.group;
  CachedHead<T> cache{step.cache.const_data_ptr<T>() + piece.head * step.cache.stride(1),
                      step.cache.stride(0),
                      step.table.const_data_ptr<int32_t>() + piece.sequence * step.table.stride(0),
                      step.block_tokens(), dim};
  if (step.slots && piece.end == step.lengths.const_data_ptr<int32_t>()[piece.sequence]) {
    const auto token = [&](const at::Tensor& of) {
      return of.const_data_ptr<T>() + piece.row * of.stride(0) + piece.head * of.stride(1);
    };
    cache.newest_key = token(*step.key);
    cache.newest_value = token(*step.value);
  }
  float* const most = found + group * dim;
  float* const total = most + group;
  std::vector<float> queries(static_cast<size_t>(std::min(group, kMostHeads) * dim));
  for (int64_t g = 0; g < group;) {
    // Three heads at a time keep the registers full; four are better than three and one.
    const int64_t left = group - g, heads = left == 4 ? 4 : std::min<int64_t>(left, 3);
    for (int64_t h = 0; h < heads; ++h) {
      const T* const from = step.query.const_data_ptr<T>() + piece.row * step.query.stride(0) +
                            (piece.head * group + g + h) * step.query.stride(1);
      float* const to = queries.data() + h * dim;
      for (int64_t d = 0; d < dim; ++d) to[d] = static_cast<float>(from[d]) * step.scale;
    }
    const RunSoftmax softmax = attend_run(queries.data(), heads, cache, piece.begin, piece.end,
                                          step.softcap, found + g * dim);
    std::copy(softmax.most, softmax.most + heads, most + g);
    std::copy(softmax.total, softmax.total + heads, total + g);
    g += heads;
  }
  if (cache.newest_key) store(step, piece, cache);
}

// Brings the runs of one head of a sequence together, in the first one's place.
void join(float* first, int64_t runs, int64_t group, int64_t dim, int64_t stride) {
  for (int64_t g = 0; g < group; ++g) {
    float* const sums = first + g * dim;
    float& most = first[group * dim + g];
    float& total = first[group * dim + group + g];
    for (int64_t run = 1; run < runs; ++run) {
      const float* const other = first + run * stride;
      const float other_most = other[group * dim + g], new_most = std::max(most, other_most);
      const float mine = std::exp(most - new_most), its = std::exp(other_most - new_most);
      for (int64_t d = 0; d < dim; ++d) sums[d] = sums[d] * mine + other[g * dim + d] * its;
      total = total * mine + other[group * dim + group + g] * its;
      most = new_most;
    }
  }
}

template <typename T>
void attend_step(const Step& step, const Pieces& pieces) {
  const int64_t group = step.group, dim = step.dim(), stride = group * (dim + 2);
  const int64_t work = pieces.tokens * group * dim;
  std::vector<float> partials(static_cast<size_t>(pieces.partials * stride));
  share_pieces(static_cast<int64_t>(pieces.all.size()), work < kAlone ? 1 : at::get_num_threads(),
               [&](int64_t index) {
                 const Piece& piece = pieces.all[static_cast<size_t>(index)];
                 if (piece.partial >= 0) {
                   attend_piece<T>(step, piece, partials.data() + piece.partial * stride);
                   return;
                 }
                 thread_local std::vector<float> found;
                 found.resize(static_cast<size_t>(stride));
                 attend_piece<T>(step, piece, found.data());
                 write<T>(step, piece.row, piece.head, found.data(), &found[group * (dim + 1)]);
               });
  for (size_t i = 0; i < pieces.all.size();) {
    const Piece& piece = pieces.all[i];
    int64_t runs = 1;
    if (piece.partial >= 0) {
      const auto last = [&](size_t at) {
        return pieces.all[at].end == step.lengths.const_data_ptr<int32_t>()[piece.sequence];
      };
      while (!last(i + static_cast<size_t>(runs) - 1)) ++runs;
      float* const first = partials.data() + piece.partial * stride;
      join(first, runs, group, dim, stride);
      write<T>(step, piece.row, piece.head, first, first + group * (dim + 1));
    }
    i += static_cast<size_t>(runs);
  }
}

// query and output [tokens, heads, dim]; key and value [tokens, kv heads, dim], stored at the
// slots; kv_cache [blocks, kv heads, tokens of a block, 2 dim]; query_start_loc [sequences + 1],
// seq_lens [sequences] (the new token is one of them), block_table [sequences, blocks]; window: how
// many tokens each sees, itself included, and <= 0: all.
void decode_attention(const at::Tensor& query, const OptionalTensor& key,
                      const OptionalTensor& value, at::Tensor& kv_cache, at::Tensor& output,
                      const at::Tensor& query_start_loc, const at::Tensor& seq_lens,
                      const at::Tensor& block_table, const OptionalTensor& slot_mapping,
                      double scale, int64_t window, double softcap) {
  const Step step{query,
                  kv_cache,
                  output,
                  seq_lens,
                  block_table,
                  key,
                  value,
                  slot_mapping,
                  query.size(1) / kv_cache.size(1),
                  static_cast<float>(scale),
                  static_cast<float>(softcap)};
  check(step, query_start_loc);
  const Pieces pieces = divide(step, query_start_loc, window);
  AT_DISPATCH_SWITCH(
      query.scalar_type(), "decode_attention", AT_DISPATCH_CASE(at::kFloat, [&] {
        attend_step<scalar_t>(step, pieces);
      }) AT_DISPATCH_CASE_REDUCED_FLOATING_TYPES([&] { attend_step<scalar_t>(step, pieces); }));
}

TORCH_LIBRARY_FRAGMENT(gapless, m) {
  m.def(
      "decode_attention(Tensor query, Tensor? key, Tensor? value, Tensor(a!) kv_cache, Tensor(b!) "
      "output, Tensor query_start_loc, Tensor seq_lens, Tensor block_table, Tensor? slot_mapping, "
      "float scale, int window, float softcap) -> ()");
}

TORCH_LIBRARY_IMPL(gapless, CPU, m) { m.impl("decode_attention", &decode_attention); }

}  // namespace
}  // namespace gapless::torch_device
