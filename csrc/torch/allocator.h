// Device memory, as PyTorch's DeviceAllocator over the runtime's caching allocator.
#pragma once

#include <c10/core/Allocator.h>

namespace gapless::torch_device {

// The deleter of our DataPtrs; their context is the block.
void delete_block(void* block);

}  // namespace gapless::torch_device
