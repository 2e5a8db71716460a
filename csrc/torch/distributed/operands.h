// A collective's tensors as the transport takes them: CPU tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/stream.h"

namespace gapless::torch_device {

enum class Access { kRead, kWrite, kReadWrite };

// Over the device's memory where the host can address it; else over pinned host memory, filled and
// emptied by the driver's copies on the stream's thread.
class Operands {
 public:
  explicit Operands(const Stream& stream);
  ~Operands();
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  // On the host, in the order in which `open` returns them.
  void add(const at::Tensor& device_tensor, Access access);

  // Both on the stream's thread, before and after the transport.
  std::vector<at::Tensor>& open();
  void close();

  // Dtypes and shapes, for an error's text.
  std::string text() const;

 private:
  struct Staged {
    void* device_address;
    void* host_address;
    uint64_t bytes;
    Access access;
  };

  void free_staged();

  const int device_;
  const int stream_;
  const bool staging_;
  std::vector<at::Tensor> aliases_;
  std::vector<Access> accesses_;
  std::vector<Staged> staged_;
  std::vector<at::Tensor> opened_;
};

}  // namespace gapless::torch_device
