// Tensors that lie one behind the other in a run of bytes; gapless/pipeline/captured_step.py says
// where each of them lies.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace gapless::torch_device {

class PackedLayout {
 public:
  struct Part {
    int64_t first_byte;
    at::ScalarType dtype;
    std::vector<int64_t> sizes;
  };

  explicit PackedLayout(std::vector<Part> parts) : parts_(std::move(parts)) {}

  const std::vector<Part>& parts() const { return parts_; }
  // Copies the tensors to where they belong behind `to`. False, with nothing copied, where they are
  // no plain contiguous tensors on the host of these dtypes and sizes.
  bool pack(const std::vector<at::Tensor>& tensors, uint8_t* to) const;
  // The part that begins at `first_byte` and a part's own place in the storage; shares its memory.
  static at::Tensor view(const Part& part, const c10::Storage& storage, int64_t first_byte);

 private:
  const std::vector<Part> parts_;
};

}  // namespace gapless::torch_device
