// Tensors without work: allocation, views, resizing, and reading one value.

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "runtime/allocator.h"
#include "torch/allocator.h"
#include "torch/copy.h"
#include "torch/departures.h"
#include "torch/submit.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(c10::layout_or_default(layout) == c10::kStrided,
                              "the device gapless has strided tensors only, not ",
                              c10::layout_or_default(layout));
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory),
              "only CPU tensors can be pinned; leave out pin_memory for device='gapless'");
}

at::Tensor empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  check_options(layout, pin_memory);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, c10::GetAllocator(c10::kPrivateUse1), kKeys,
                                   c10::dtype_or_default(dtype), format);
}

// A large tensor in memory that the system has just given is zero already. Writing to it would only
// bring every page of it into being now, which takes longer than writing: a second for a gigabyte.
constexpr size_t kZerosAsTheyCome = 16u << 20;

bool is_zero_already(const at::Tensor& tensor) {
  const c10::DataPtr& data = tensor.storage().data_ptr();
  return tensor.storage().nbytes() >= kZerosAsTheyCome && data.get_deleter() == &delete_block &&
         static_cast<const Block*>(data.get_context())->zeros &&
         !current_stream(tensor.get_device()).capturing();  // a replay has to write them again
}

at::Tensor zeros(c10::SymIntArrayRef size, std::optional<c10::ScalarType> dtype,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                 std::optional<bool> pin_memory) {
  const at::Tensor result =
      empty(C10_AS_INTARRAYREF_SLOW(size), dtype, layout, device, pin_memory, std::nullopt);
  return is_zero_already(result) ? result : result.zero_();
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(c10::kPrivateUse1),
                                           kKeys, c10::dtype_or_default(dtype));
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size,
                         std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  // The storage first: PyTorch would copy what it holds on the host, past the queue.
  const auto& storage = self.storage();
  const auto bytes = at::detail::computeStorageNbytesContiguous(
      sizes, self.itemsize(), static_cast<size_t>(self.storage_offset()));
  if (c10::multiply_integers(sizes) > 0 && bytes > storage.nbytes() && storage.resizable()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, bytes);
  }
  return at::native::resize_(self, sizes, format);
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size),
                                    C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, c10::SymInt offset,
                               c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  const int64_t at_offset = offset.guard_int(__FILE__, __LINE__);
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const auto strides = C10_AS_INTARRAYREF_SLOW(stride);
  at::native::checkSetStorage(self, source, at_offset, sizes, strides);
  self.unsafeGetTensorImpl()->set_storage_offset(at_offset);
  at::native::resize_impl_cpu_(self.unsafeGetTensorImpl(), sizes,
                               strides.data() ? std::make_optional(strides) : std::nullopt,
                               /*resize_storage=*/false);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_offset(self, std::move(source), 0, {c10::SymInt(elements)}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_tensor_(self, source);
}

at::Tensor& set_nothing(at::Tensor& self) {
  return self.set_(
      c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::GetAllocator(c10::kPrivateUse1), true),
      0, {0}, {});
}

at::Scalar local_scalar(const at::Tensor& self) {
  const at::Tensor value = read(self, "reading a value (item, bool, int, float)");
  count_departure("aten::_local_scalar_dense", "the host reads a value");
  return at::native::_local_scalar_dense_cpu(value);
}

void record_stream(at::Tensor& self, at::Stream stream) {
  c10::getDeviceAllocator(c10::kPrivateUse1)->recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("zeros", zeros);
  m.impl("resize_", resize);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage_offset);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_nothing);
  m.impl("is_set_to", at::native::is_set_to);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("record_stream", record_stream);
}

}  // namespace
}  // namespace gapless::torch_device
