// Copies between host and device, and on the device.
#pragma once

#include <ATen/core/Tensor.h>

namespace gapless::torch_device {

// Copies `source` to `destination`, either or both on the device, in the current stream's order.
void copy(const at::Tensor& source, const at::Tensor& destination, bool non_blocking);

// Copies the first `bytes` of a storage into fresh memory of the same device.
void copy_bytes_on_device(const c10::Storage& source, const c10::DataPtr& destination,
                          size_t bytes);

// The tensor's values in a new CPU tensor; waits.
at::Tensor read(const at::Tensor& tensor, const char* what);

}  // namespace gapless::torch_device
