// Rows times a weight that lies in float16: products and sums are float32.
//
// The weight lies in panels of kPanel outputs, of two halves each, [panels, 2, inputs, kPanel / 2]:
// few rows read both halves at once from their beginning to their end, more rows one after the
// other, which a core's first cache holds for all of them. Each sum is taken in the order of the
// inputs whatever the number of rows: a row's result does not depend on the rows beside it.
#pragma once

#include <cstdint>

namespace gapless::torch_device {

constexpr int64_t kPanel = 32;

// With AVX2. sums[row, kPanel] of `count` rows, each of `inputs` numbers, one after the other.
void multiply_panel(const float* rows, int64_t count, const uint16_t* panel, int64_t inputs,
                    float* sums);

}  // namespace gapless::torch_device
