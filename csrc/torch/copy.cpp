#include "torch/copy.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "runtime/device.h"
#include "runtime/event.h"
#include "torch/alias.h"
#include "torch/departures.h"
#include "torch/errors.h"
#include "torch/graph_capture.h"
#include "torch/host_allocator.h"
#include "torch/submit.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

// Up to here a blocking copy from pageable memory takes a snapshot and returns; above, it waits for
// the device rather than doubling the memory.
constexpr size_t kSnapshotBytes = 1u << 20;

const char* const kNames[] = {"copy host to device", "copy device to host", "copy on device"};

class CopyWork final : public Work {
 public:
  CopyWork(gapless_copy_kind direction, const Stream& stream, at::Tensor source,
           at::Tensor destination)
      : Work(static_cast<WorkKind>(static_cast<int>(WorkKind::kCopyToDevice) + direction),
             kNames[direction]),
        direction_(direction),
        device_(stream.device()),
        stream_(stream.index()),
        source_(std::move(source)),
        destination_(std::move(destination)) {
    plain_ =
        source_.dtype() == destination_.dtype() && source_.sizes() == destination_.sizes() &&
        source_.strides() == destination_.strides() && source_.is_non_overlapping_and_dense() &&
        source_.is_conj() == destination_.is_conj() && source_.is_neg() == destination_.is_neg();
  }

  void run(const RunContext&) override {
    if (!plain_) {
      destination_.copy_(source_);
      return;
    }
    const auto status = driver().copy(device_, stream_, destination_.mutable_data_ptr(),
                                      source_.const_data_ptr(), destination_.nbytes(), direction_);
    if (status != GAPLESS_OK) throw DeviceError(driver().last_error());
  }

  std::string operands() const override {
    return std::string(c10::toString(source_.scalar_type())) + c10::str(source_.sizes()) + " to " +
           c10::toString(destination_.scalar_type()) + c10::str(destination_.sizes());
  }

 private:
  gapless_copy_kind direction_;
  int device_;
  int stream_;
  bool plain_;
  at::Tensor source_;
  at::Tensor destination_;
};

// A CPU tensor over the same memory; the caller sees to it that the memory stays.
at::Tensor borrowed(const at::Tensor& cpu_tensor) { return alias_on_cpu(cpu_tensor); }

bool pinned(const at::Tensor& cpu_tensor) {
  return cpu_tensor.has_storage() && is_pinned(cpu_tensor.storage().data());
}

void keep_pinned(Stream& stream, const at::Tensor& tensor) {
  note_use(stream, tensor);
  record_pinned_use(tensor, stream);
}

void copy_to_device(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  Stream& stream = stream_for(destination.device());
  note_use(stream, destination);
  auto queue = [&](at::Tensor from) {
    submit(stream, std::make_unique<CopyWork>(GAPLESS_HOST_TO_DEVICE, stream, std::move(from),
                                              alias_on_cpu(destination)));
  };
  if (non_blocking && pinned(source)) {
    keep_pinned(stream, source);
    queue(borrowed(source));
  } else if (non_blocking || stream.capturing() || source.nbytes() <= kSnapshotBytes) {
    queue(snapshot(source));
  } else {
    count_departure("copy host to device", "a blocking copy of more than 1 MiB waits");
    queue(borrowed(source));
    synchronize(stream);
  }
}

void copy_to_host(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  Stream& stream = stream_for(source.device());
  const bool asynchronous = non_blocking && pinned(destination);
  if (!asynchronous && stream.capturing()) synchronize(stream, "a blocking copy to the host");
  note_use(stream, source);
  if (asynchronous) keep_pinned(stream, destination);
  submit(stream, std::make_unique<CopyWork>(GAPLESS_DEVICE_TO_HOST, stream, alias_on_cpu(source),
                                            borrowed(destination)));
  if (asynchronous) return;
  count_departure("copy device to host", non_blocking ? "non_blocking needs a pinned destination"
                                                      : "a blocking copy waits");
  synchronize(stream);
}

void copy_on_device(const at::Tensor& source, const at::Tensor& destination) {
  Stream& to = stream_for(destination.device());
  Stream& from = stream_for(source.device());
  Event ready(false), taken(false);
  if (&from != &to) {
    ready.record(from);
    translated([&] { submit_wait(to, ready.mark()); });
  }
  note_use(to, source);
  note_use(to, destination);
  submit(to, std::make_unique<CopyWork>(GAPLESS_DEVICE_TO_DEVICE, to, alias_on_cpu(source),
                                        alias_on_cpu(destination)));
  if (&from != &to) {
    taken.record(to);
    translated([&] { submit_wait(from, taken.mark()); });
  }
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  copy(self, destination, non_blocking);
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& destination) {
  destination.resize_(self.sizes());
  copy(self, destination, false);
  return destination;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
}

// Copies read the conjugate and negative bits themselves. Without this PyTorch's fallback would
// resolve them by a clone, which copies, and so on without end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace

void copy(const at::Tensor& self, const at::Tensor& destination, bool non_blocking) {
  if (destination.numel() == 0 && self.numel() == 0) return;
  const at::Tensor source =
      self.sizes() == destination.sizes() ? self : self.expand(destination.sizes());
  if (destination.numel() == 0) return;
  const bool from_device = source.device().is_privateuseone();
  const bool to_device = destination.device().is_privateuseone();
  TORCH_CHECK((from_device || source.is_cpu()) && (to_device || destination.is_cpu()),
              "cannot copy between ", source.device(), " and ", destination.device(),
              "; go through the CPU");
  if (from_device && to_device) {
    copy_on_device(source, destination);
  } else if (to_device) {
    copy_to_device(source, destination, non_blocking);
  } else {
    copy_to_host(source, destination, non_blocking);
  }
}

void copy_bytes_on_device(const c10::Storage& source, const c10::DataPtr& destination,
                          size_t bytes) {
  if (bytes == 0) return;
  Stream& stream = stream_for(source.device());
  auto bytes_over = [&](void* address) {
    auto storage =
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                              c10::DataPtr(address, c10::kCPU), nullptr, false);
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
        caffe2::TypeMeta::Make<uint8_t>());
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(bytes)});
    return tensor;
  };
  submit(stream, std::make_unique<CopyWork>(GAPLESS_DEVICE_TO_DEVICE, stream,
                                            bytes_over(source.mutable_data()),
                                            bytes_over(destination.get())));
}

at::Tensor read(const at::Tensor& tensor, const char* what) {
  Stream& stream = stream_for(tensor.device());
  synchronize(stream, what);
  return alias_on_cpu(tensor).clone();
}

}  // namespace gapless::torch_device
