#include "torch/packed_layout.h"

#include <c10/core/TensorImpl.h>

#include <cstring>
#include <utility>

namespace gapless::torch_device {
namespace {

bool fits(const at::Tensor& tensor, const PackedLayout::Part& part) {
  return tensor.defined() && tensor.device().is_cpu() && tensor.layout() == c10::kStrided &&
         tensor.scalar_type() == part.dtype && tensor.sizes() == part.sizes &&
         tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() && tensor.has_storage() &&
         !tensor.unsafeGetTensorImpl()->is_python_dispatch();
}

}  // namespace

bool PackedLayout::pack(const std::vector<at::Tensor>& tensors, uint8_t* to) const {
  if (tensors.size() != parts_.size()) return false;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!fits(tensors[i], parts_[i])) return false;
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (const size_t bytes = tensors[i].nbytes()) {
      std::memcpy(to + parts_[i].first_byte, tensors[i].const_data_ptr(), bytes);
    }
  }
  return true;
}

at::Tensor PackedLayout::view(const Part& part, const c10::Storage& storage, int64_t first_byte) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(part.dtype));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(part.sizes);
  impl->set_storage_offset((first_byte + part.first_byte) /
                           static_cast<int64_t>(c10::elementSize(part.dtype)));
  return tensor;
}

}  // namespace gapless::torch_device
