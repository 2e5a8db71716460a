// The place of each row's largest number: PyTorch's kernel looks at them one by one.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "torch/avx2_vector.h"
#include "torch/spin_team.h"

namespace gapless::torch_device {
namespace {

constexpr int64_t kVector = 8;
// Numbers in which the largest is sought first, and then its place.
constexpr int64_t kPart = 1024;

// Whether one number takes another's place, that comes before it; as for PyTorch a NaN is the
// largest.
bool is_above(float number, float other) {
  return number > other || (std::isnan(number) && !std::isnan(other));
}

float largest_one_by_one(const float* numbers, int64_t count) {
  float most = numbers[0];
  for (int64_t i = 1; i < count; ++i) {
    if (is_above(numbers[i], most)) most = numbers[i];
  }
  return most;
}

#if defined(__x86_64__)

GAPLESS_AVX2 float largest_of_vectors(const float* numbers, int64_t count) {
  __m256 most[4], lost = _mm256_setzero_ps();
  for (__m256& each : most) each = _mm256_loadu_ps(numbers);
  int64_t i = 0;
  for (; i + 4 * kVector <= count; i += 4 * kVector) {
    for (int v = 0; v < 4; ++v) {
      const __m256 number = _mm256_loadu_ps(numbers + i + v * kVector);
      lost = _mm256_or_ps(lost, _mm256_cmp_ps(number, number, _CMP_UNORD_Q));
      most[v] = _mm256_max_ps(most[v], number);
    }
  }
  if (_mm256_movemask_ps(lost) != 0) return NAN;
  float parts[kVector];
  _mm256_storeu_ps(parts,
                   _mm256_max_ps(_mm256_max_ps(most[0], most[1]), _mm256_max_ps(most[2], most[3])));
  float found = *std::max_element(parts, parts + kVector);
  for (; i < count; ++i) {
    if (is_above(numbers[i], found)) found = numbers[i];
  }
  return found;
}

#endif

float largest(const float* numbers, int64_t count) {
#if defined(__x86_64__)
  if (count >= 4 * kVector && has_avx2()) return largest_of_vectors(numbers, count);
#endif
  return largest_one_by_one(numbers, count);
}

int64_t place_of_largest(const float* row, int64_t count) {
  int64_t part = 0;
  float most = largest(row, std::min(kPart, count));
  for (int64_t from = kPart; from < count; from += kPart) {
    const float other = largest(row + from, std::min(kPart, count - from));
    if (is_above(other, most)) {
      most = other;
      part = from;
    }
  }
  while (std::isnan(most) ? !std::isnan(row[part]) : row[part] != most) ++part;
  return part;
}

// out [rows] int64, logits [rows, numbers] float32; of equal numbers the first.
void greedy_argmax(at::Tensor& out, const at::Tensor& logits) {
  TORCH_CHECK(logits.dim() == 2 && out.dim() == 1 && out.size(0) == logits.size(0) &&
                  logits.size(1) > 0 && logits.scalar_type() == at::kFloat &&
                  logits.stride(1) == 1 && out.scalar_type() == at::kLong && out.is_contiguous(),
              "greedy_argmax: out ", out.sizes(), " of ", out.scalar_type(), " and logits ",
              logits.sizes(), " of ", logits.scalar_type(), " do not fit");
  const auto* from = logits.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<int64_t>();
  share_pieces(logits.size(0), at::get_num_threads(), [&](int64_t row) {
    to[row] = place_of_largest(from + row * logits.stride(0), logits.size(1));
  });
}

TORCH_LIBRARY_FRAGMENT(gapless, m) { m.def("greedy_argmax(Tensor(a!) out, Tensor logits) -> ()"); }

TORCH_LIBRARY_IMPL(gapless, CPU, m) { m.impl("greedy_argmax", &greedy_argmax); }

}  // namespace
}  // namespace gapless::torch_device
