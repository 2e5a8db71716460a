#include "torch/alias.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>

#include "runtime/device.h"
#include "torch/allocator.h"

namespace gapless::torch_device {
namespace {

at::Tensor over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like,
                int64_t storage_offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(key), like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), storage_offset);
  if (like.is_conj()) impl->_set_conj(true);
  if (like.is_neg()) impl->_set_neg(true);
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return tensor;
}

c10::Storage unowned(void* address, size_t bytes, c10::Device device) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(address, device),
      /*allocator=*/nullptr, /*resizable=*/false));
}

}  // namespace

at::Tensor alias_on_cpu(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  auto* address = static_cast<char*>(storage.mutable_data());
  if (address && tensor.device().is_privateuseone()) {
    address += device(tensor.device().index()).properties().kernel_offset_bytes;
  }
  return over(unowned(address, storage.nbytes(), c10::kCPU), c10::DispatchKey::CPU, tensor,
              tensor.storage_offset());
}

bool is_alias(const at::Tensor& cpu_tensor) {
  return cpu_tensor.has_storage() && !cpu_tensor.storage().data_ptr().get_context();
}

at::Tensor alias_at(const at::Tensor& alias, const c10::Storage& owner, void* address,
                    size_t bytes) {
  c10::DataPtr data(address, c10::kCPU);
  if (owner) {
    data = c10::DataPtr(
        address, new c10::Storage(owner),
        [](void* kept) { delete static_cast<c10::Storage*>(kept); }, c10::kCPU);
  }
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), /*allocator=*/nullptr,
      /*resizable=*/false));
  return over(std::move(storage), c10::DispatchKey::CPU, alias, 0);
}

at::Tensor alias_in(const at::Tensor& alias, const c10::Storage& storage, int64_t offset) {
  return over(storage, c10::DispatchKey::CPU, alias, offset);
}

at::Tensor alias_as_meta(const at::Tensor& tensor) {
  const size_t bytes = tensor.has_storage() ? tensor.storage().nbytes() : 0;
  // Resizable: the shape function of an out= variant sizes its outputs.
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(nullptr, c10::kMeta),
      c10::GetAllocator(c10::kMeta), /*resizable=*/true));
  return over(std::move(storage), c10::DispatchKey::Meta, tensor, tensor.storage_offset());
}

at::Tensor snapshot(const at::Tensor& cpu_tensor) {
  if (cpu_tensor.numel() == 1) {  // the common case, scalars, without the dispatcher
    const size_t bytes = cpu_tensor.element_size();
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), bytes, c10::GetCPUAllocator(), /*resizable=*/false);
    std::memcpy(storage->mutable_data(), cpu_tensor.const_data_ptr(), bytes);
    return over(std::move(storage), c10::DispatchKey::CPU, cpu_tensor, 0);
  }
  auto copy = cpu_tensor.detach().clone();
  if (cpu_tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return copy;
}

Block* block_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  const auto& data = tensor.storage().data_ptr();
  return data.get_deleter() == &delete_block ? static_cast<Block*>(data.get_context()) : nullptr;
}

}  // namespace gapless::torch_device
