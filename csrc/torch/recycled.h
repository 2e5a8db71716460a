// Memory of one size that one thread takes and another gives back.
#pragma once

#include <cstddef>

namespace gapless::torch_device::recycled {

// Every call must ask for the same number of bytes.
void* take(size_t bytes);
void give_back(void* memory);

}  // namespace gapless::torch_device::recycled
