// Copies between host and device, and on the device.
#pragma once

#include <ATen/core/Tensor.h>

namespace gapless::torch_device {

// Copies `source` to `destination`, either or both on the device, in the current stream's order.
void copy(const at::Tensor& source, const at::Tensor& destination, bool non_blocking);

// Copies bytes within a device's memory, in the current stream's order.
void copy_bytes_on_device(void* destination, const void* source, size_t bytes, c10::Device device);

// The tensor's values in a new CPU tensor; waits.
at::Tensor read(const at::Tensor& tensor, const char* what);

}  // namespace gapless::torch_device
