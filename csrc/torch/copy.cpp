#include "torch/copy.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
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
#include "torch/staging.h"
#include "torch/submit.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

// Up to here a blocking copy from pageable memory takes a snapshot and returns; above, it waits for
// the device rather than doubling the memory.
constexpr size_t kSnapshotBytes = 1u << 20;

const char* const kNames[] = {"copy host to device", "copy device to host", "copy on device"};

// One end of a copy: the tensor as kernels see it and, on a device, the address that is the
// driver's.
struct End {
  at::Tensor alias;
  void* address;
  int device;  // -1: the host

  // The memory stays by stream order, or because the caller sees to it.
  static End borrowed(const at::Tensor& tensor) { return End(tensor, alias_on_cpu(tensor)); }
  // The host's tensor, kept by the work.
  static End owned(const at::Tensor& snapshot) { return End(snapshot, snapshot); }

  End(const at::Tensor& tensor, at::Tensor alias)
      : alias(std::move(alias)),
        address(const_cast<void*>(tensor.const_data_ptr())),
        device(tensor.device().is_privateuseone() ? tensor.device().index() : -1) {}

  // The alias at the driver's address, for Staging.
  at::Tensor driver_alias() const { return alias_at(alias, {}, address, alias.storage().nbytes()); }
};

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

class CopyWork final : public Work {
 public:
  CopyWork(gapless_copy_kind direction, End source, End destination)
      : Work(static_cast<WorkKind>(static_cast<int>(WorkKind::kCopyToDevice) + direction),
             kNames[direction]),
        direction_(direction),
        source_(std::move(source)),
        destination_(std::move(destination)),
        plain_(same_layout(source_.alias, destination_.alias)) {}

  void run(const RunContext& context) override {
    if (plain_) {
      copy_bytes(context);
    } else {
      convert(context);
    }
  }

  WorkCost cost() const override {
    if (!by_kernel()) return {};
    return {1, source_.alias.nbytes() + destination_.alias.nbytes(), 0};
  }

  std::string operands() const override {
    const at::Tensor& from = source_.alias;
    const at::Tensor& to = destination_.alias;
    return std::string(c10::toString(from.scalar_type())) + c10::str(from.sizes()) + " to " +
           c10::toString(to.scalar_type()) + c10::str(to.sizes());
  }

 private:
  bool by_kernel() const {
    return !plain_ && direction_ == GAPLESS_DEVICE_TO_DEVICE &&
           !device(source_.device).memory_is_private();
  }

  void copy_bytes(const RunContext& context) {
    const uint64_t bytes = destination_.alias.nbytes();
    if (direction_ == GAPLESS_DEVICE_TO_DEVICE && source_.device != context.device) {
      check(driver().copy_peer(context.device, context.stream, destination_.address, source_.device,
                               source_.address, bytes));
    } else {
      check(driver().copy(context.device, context.stream, destination_.address, source_.address,
                          bytes, direction_));
    }
  }

  // Other dtypes or layouts: in place where a kernel reaches both ends, else through host buffers.
  void convert(const RunContext& context) {
    try {
      if (by_kernel() || device(context.device).memory_is_shared()) {
        destination_.alias.copy_(source_.alias);
        return;
      }
      Staging staging(context.device, context.stream);
      if (source_.device >= 0) staging.add(source_.driver_alias(), /*written=*/false);
      if (destination_.device >= 0) staging.add(destination_.driver_alias(), /*written=*/true);
      staging.fetch();
      const at::Tensor to = destination_.device >= 0 ? staging.staged(destination_.driver_alias())
                                                     : destination_.alias;
      to.copy_(source_.device >= 0 ? staging.staged(source_.driver_alias()) : source_.alias);
      staging.write_back();
    } catch (const c10::Error& error) {
      throw DeviceError(error.what_without_backtrace());
    }
  }

  static void check(gapless_status status) {
    if (status != GAPLESS_OK) throw DeviceError(driver().last_error());
  }

  gapless_copy_kind direction_;
  End source_;
  End destination_;
  bool plain_;
};

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
  auto queue = [&](End from) {
    submit(stream, std::make_unique<CopyWork>(GAPLESS_HOST_TO_DEVICE, std::move(from),
                                              End::borrowed(destination)));
  };
  if (non_blocking && pinned(source)) {
    keep_pinned(stream, source);
    queue(End::borrowed(source));
  } else if (non_blocking || stream.capturing() || source.nbytes() <= kSnapshotBytes) {
    queue(End::owned(snapshot(source)));
  } else {
    count_departure("copy host to device", "a blocking copy of more than 1 MiB waits");
    queue(End::borrowed(source));
    synchronize(stream);
  }
}

void submit_to_host(Stream& stream, const at::Tensor& source, const at::Tensor& destination) {
  note_use(stream, source);
  submit(stream, std::make_unique<CopyWork>(GAPLESS_DEVICE_TO_HOST, End::borrowed(source),
                                            End::borrowed(destination)));
}

void copy_to_host(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  Stream& stream = stream_for(source.device());
  const bool asynchronous = non_blocking && pinned(destination);
  if (!asynchronous && stream.capturing()) synchronize(stream, "a blocking copy to the host");
  if (asynchronous) keep_pinned(stream, destination);
  submit_to_host(stream, source, destination);
  if (asynchronous) return;
  count_departure("copy device to host", non_blocking ? "non_blocking needs a pinned destination"
                                                      : "a blocking copy waits");
  synchronize(stream);
}

void submit_on_device(const at::Tensor& source, const at::Tensor& destination) {
  Stream& to = stream_for(destination.device());
  Stream& from = stream_for(source.device());
  Event ready(false), taken(false);
  if (&from != &to) {
    ready.record(from);
    translated([&] { submit_wait(to, ready.mark()); });
  }
  note_use(to, source);
  note_use(to, destination);
  submit(to, std::make_unique<CopyWork>(GAPLESS_DEVICE_TO_DEVICE, End::borrowed(source),
                                        End::borrowed(destination)));
  if (&from != &to) {
    taken.record(to);
    translated([&] { submit_wait(from, taken.mark()); });
  }
}

// Between devices whose driver has no copy of its own for that: each half on its device's stream.
void copy_through_host(const at::Tensor& source, const at::Tensor& destination) {
  const auto between = at::empty_strided(source.sizes(), source.strides(),
                                         source.options().device(at::kCPU).pinned_memory(true));
  copy_to_host(source, between, /*non_blocking=*/true);
  Event arrived(false);
  arrived.record(stream_for(source.device()));
  translated([&] { submit_wait(stream_for(destination.device()), arrived.mark()); });
  copy_to_device(between, destination, /*non_blocking=*/true);
}

void copy_between_devices(const at::Tensor& source, const at::Tensor& destination) {
  if (driver().copy_peer) {
    submit_on_device(source, destination);
  } else {
    copy_through_host(source, destination);
  }
}

void copy_on_device(const at::Tensor& source, const at::Tensor& destination) {
  if (source.device() == destination.device()) {
    submit_on_device(source, destination);
    return;
  }
  if (same_layout(source, destination)) {
    copy_between_devices(source, destination);
    return;
  }
  // Between devices only bytes travel: the source's device converts, the destination's scatters.
  const auto options = source.options().dtype(destination.scalar_type());
  at::Tensor sent = source;
  if (source.dtype() != destination.dtype() || !source.is_contiguous() || source.is_conj() ||
      source.is_neg()) {
    const c10::DeviceGuard guard(source.device());
    sent = at::empty(source.sizes(), options);
    submit_on_device(source, sent);
  }
  const c10::DeviceGuard guard(destination.device());
  if (same_layout(sent, destination)) {
    copy_between_devices(sent, destination);
    return;
  }
  const auto arrived = at::empty(source.sizes(), options.device(destination.device()));
  copy_between_devices(sent, arrived);
  submit_on_device(arrived, destination);
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
  at::assert_no_internal_overlap(destination);
  at::assert_no_partial_overlap(destination, source);
  if (from_device && to_device) {
    copy_on_device(source, destination);
  } else if (to_device) {
    copy_to_device(source, destination, non_blocking);
  } else {
    copy_to_host(source, destination, non_blocking);
  }
}

void copy_bytes_on_device(void* destination, const void* source, size_t bytes, c10::Device device) {
  if (bytes == 0) return;
  Stream& stream = stream_for(device);
  auto bytes_over = [&](void* address) {
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                           bytes, c10::DataPtr(address, device),
                                                           nullptr, false)),
        c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), caffe2::TypeMeta::Make<uint8_t>());
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(bytes)});
    return End::borrowed(tensor);
  };
  submit(stream,
         std::make_unique<CopyWork>(GAPLESS_DEVICE_TO_DEVICE, bytes_over(const_cast<void*>(source)),
                                    bytes_over(destination)));
}

at::Tensor read(const at::Tensor& tensor, const char* what) {
  Stream& stream = stream_for(tensor.device());
  if (device(tensor.device().index()).memory_is_shared()) {
    synchronize(stream, what);
    return alias_on_cpu(tensor).clone();
  }
  refuse_in_capture(stream, what);
  auto out = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  if (tensor.is_conj()) out._set_conj(true);
  if (tensor.is_neg()) out._set_neg(true);
  submit_to_host(stream, tensor, out);
  synchronize(stream, what);
  return out;
}

}  // namespace gapless::torch_device
