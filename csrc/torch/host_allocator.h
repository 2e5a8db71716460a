// Pinned host memory, over PyTorch's caching host allocator.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/stream.h"

namespace gapless::torch_device {

bool is_pinned(const void* address);

// Keeps the pinned memory from being handed out again until the stream has passed this point.
void record_pinned_use(const at::Tensor& pinned, Stream& stream);

}  // namespace gapless::torch_device
