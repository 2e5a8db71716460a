// Tensors that stand for another tensor's memory without owning it.
//
// A queued closure must own nothing that Python can see: destroying it would take the global lock
// on the device's thread. Device memory stays valid by stream order (see runtime/allocator.h), so
// that a fresh tensor over the bare address is enough.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/allocator.h"

namespace gapless::torch_device {

// A CPU tensor over the tensor's memory, with its layout, conjugate and negative bits. For a device
// tensor it holds the address under which kernels on a stream's thread reach the memory; where none
// does (see drivers/driver.h), the device address, for Staging to replace.
at::Tensor alias_on_cpu(const at::Tensor& tensor);

// Whether the tensor is such an alias, rather than a snapshot that owns its memory.
bool is_alias(const at::Tensor& cpu_tensor);

// The alias with its first element at `address`, where there are `bytes`, which `owner` (if any)
// keeps.
at::Tensor alias_at(const at::Tensor& alias, const c10::Storage& owner, void* address,
                    size_t bytes);

// The alias as a part of `storage`, from its element `offset` on.
at::Tensor alias_in(const at::Tensor& alias, const c10::Storage& storage, int64_t offset);

// A tensor without memory with the same layout, for shape inference. `tensor` may live anywhere.
at::Tensor alias_as_meta(const at::Tensor& tensor);

// A copy of a CPU tensor's values as they are now, which the host may overwrite afterwards.
at::Tensor snapshot(const at::Tensor& cpu_tensor);

// The allocator's block under the tensor, or nullptr where the memory is not ours.
Block* block_of(const at::Tensor& tensor);

}  // namespace gapless::torch_device
