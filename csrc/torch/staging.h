// Host copies of private device memory for the time that a kernel computes on them.
//
// Where only the driver's copies reach the memory, a kernel on the stream's thread gets tensors
// over host buffers instead: fetched before it, written back after it. Tensors that share bytes
// share a buffer, so that views and in-place operators mean what they mean.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace gapless::torch_device {

class Staging {
 public:
  Staging(int device, int stream) : device_(device), stream_(stream) {}

  // Announces a tensor over device memory (see alias.h). Tensors of the host's own are left alone.
  void add(const at::Tensor& alias, bool written);
  // Copies what was announced to the host. Throws DeviceError, as `write_back` does.
  void fetch();
  // The host's tensor in place of the announced one, or the tensor itself where it is the host's.
  at::Tensor staged(const at::Tensor& alias) const;
  void write_back() const;

 private:
  struct Range {
    char* begin;
    char* end;
    char* room_end;  // a kernel may pass through a larger shape on its way to the result's
    bool written;
    at::Tensor buffer;
    c10::Storage storage;  // over the buffer, for the tensors in it
  };

  const int device_;
  const int stream_;
  std::vector<Range> ranges_;  // disjoint and ascending once fetched
};

}  // namespace gapless::torch_device
