#include "torch/operand.h"

#include <cstring>
#include <utility>

#include "runtime/device.h"
#include "torch/alias.h"

namespace gapless::torch_device {

Operand::Operand(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const auto* impl = tensor.unsafeGetTensorImpl();
  defined_ = true;
  dtype_ = tensor.scalar_type();
  offset_ = tensor.storage_offset();
  is_wrapped_number_ = impl->is_wrapped_number();
  is_conj_ = tensor.is_conj();
  is_neg_ = tensor.is_neg();
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  layout_.append(sizes.begin(), sizes.end());
  layout_.append(strides.begin(), strides.end());
  if (!tensor.is_privateuseone()) {
    is_value_ = true;
    bytes_ = tensor.element_size();
    offset_ = 0;
    std::memcpy(value_, tensor.const_data_ptr(), bytes_);
    return;
  }
  const c10::Storage& storage = tensor.storage();
  bytes_ = storage.nbytes();
  address_ = storage.mutable_data();
  if (address_) {
    address_ =
        static_cast<char*>(address_) + device(tensor.get_device()).properties().kernel_offset_bytes;
  }
}

at::Tensor Operand::alias() const {
  if (!defined_) return {};
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes_,
                                                       c10::DataPtr(address(), c10::kCPU),
                                                       /*allocator=*/nullptr, /*resizable=*/false);
  return alias_in(c10::Storage(std::move(storage)));
}

at::Tensor Operand::alias_in(const c10::Storage& storage) const {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(dtype_));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes(), strides(), offset_);
  if (is_conj_) impl->_set_conj(true);
  if (is_neg_) impl->_set_neg(true);
  if (is_wrapped_number_) impl->set_wrapped_number(true);
  return tensor;
}

std::vector<at::Tensor>& AliasPool::kept(c10::ScalarType dtype, bool is_wrapped_number) {
  return kept_[is_wrapped_number ? 1 : 0][static_cast<size_t>(dtype)];
}

at::Tensor AliasPool::take(const Operand& operand) {
  if (!operand.defined_ || operand.is_conj_ || operand.is_neg_) return operand.alias();
  auto& free = kept(operand.dtype_, operand.is_wrapped_number_);
  if (free.empty()) return operand.alias();
  at::Tensor tensor = std::move(free.back());
  free.pop_back();
  auto* impl = tensor.unsafeGetTensorImpl();
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(operand.address(), c10::kCPU));
  storage->set_nbytes(operand.bytes_);
  impl->set_sizes_and_strides(operand.sizes(), operand.strides(), operand.offset_);
  return tensor;
}

void AliasPool::give_back(at::Tensor tensor) {
  if (!tensor.defined() || tensor.use_count() != 1) return;
  // What a fresh alias looks like; a kernel may have replaced the storage, or set a bit.
  static const c10::DispatchKeySet fresh = [] {
    Operand any;
    any.defined_ = true;
    any.dtype_ = c10::kFloat;
    return any.alias().key_set();
  }();
  auto* impl = tensor.unsafeGetTensorImpl();
  if (impl->key_set() != fresh || impl->autograd_meta() || impl->pyobj_slot()->load_pyobj()) {
    return;
  }
  const c10::Storage& storage = impl->unsafe_storage();
  if (storage.use_count() != 1 || storage.allocator() || storage.resizable()) return;
  auto& free = kept(tensor.scalar_type(), impl->is_wrapped_number());
  if (free.size() < kKept) free.push_back(std::move(tensor));
}

}  // namespace gapless::torch_device
