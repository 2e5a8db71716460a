// Tensors that stand for another tensor's memory without owning it.
//
// A queued closure must own nothing that Python can see: destroying it would take the global lock
// on the device's thread. Device memory stays valid by stream order (see runtime/allocator.h), so
// that a fresh tensor over the bare address is enough.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/allocator.h"

namespace gapless::torch_device {

// A CPU tensor over the device tensor's memory, with its layout, conjugate and negative bits.
at::Tensor alias_on_cpu(const at::Tensor& tensor);

// A tensor without memory with the same layout, for shape inference. `tensor` may live anywhere.
at::Tensor alias_as_meta(const at::Tensor& tensor);

// A copy of a CPU tensor's values as they are now, which the host may overwrite afterwards.
at::Tensor snapshot(const at::Tensor& cpu_tensor);

// The allocator's block under the tensor, or nullptr where the memory is not ours.
Block* block_of(const at::Tensor& tensor);

}  // namespace gapless::torch_device
