#include "torch/distributed/operands.h"

#include <ATen/ops/from_blob.h>

#include "runtime/device.h"
#include "torch/alias.h"

namespace gapless::torch_device {
namespace {

void checked(gapless_status status) {
  if (status != GAPLESS_OK) throw DeviceError(driver().last_error());
}

}  // namespace

Operands::Operands(const Stream& stream)
    : device_(stream.device()),
      stream_(stream.index()),
      staging_(!device(stream.device()).memory_is_shared()) {}

Operands::~Operands() { free_staged(); }

void Operands::add(const at::Tensor& device_tensor, Access access) {
  at::Tensor alias = alias_on_cpu(device_tensor);
  // Copies take the driver's own address.
  if (staging_) {
    alias = alias_at(alias, {}, const_cast<void*>(device_tensor.const_data_ptr()), alias.nbytes());
  }
  aliases_.push_back(std::move(alias));
  accesses_.push_back(access);
}

std::vector<at::Tensor>& Operands::open() {
  if (!staging_) {
    opened_ = aliases_;
    return opened_;
  }
  for (size_t i = 0; i < aliases_.size(); ++i) {
    const at::Tensor& alias = aliases_[i];
    Staged staged{alias.mutable_data_ptr(), nullptr, alias.nbytes(), accesses_[i]};
    if (staged.bytes > 0) {
      checked(driver().host_alloc(staged.bytes, &staged.host_address));
      staged_.push_back(staged);
      if (staged.access != Access::kWrite) {
        checked(driver().copy(device_, stream_, staged.host_address, staged.device_address,
                              staged.bytes, GAPLESS_DEVICE_TO_HOST));
      }
    }
    opened_.push_back(at::from_blob(staged.host_address, alias.sizes(), alias.strides(),
                                    at::TensorOptions().dtype(alias.dtype())));
  }
  return opened_;
}

void Operands::close() {
  for (const Staged& staged : staged_) {
    if (staged.access == Access::kRead) continue;
    checked(driver().copy(device_, stream_, staged.device_address, staged.host_address,
                          staged.bytes, GAPLESS_HOST_TO_DEVICE));
  }
  opened_.clear();
  free_staged();
}

void Operands::free_staged() {
  for (const Staged& staged : staged_) driver().host_free(staged.host_address, staged.bytes);
  staged_.clear();
}

std::string Operands::text() const {
  std::string text;
  for (const at::Tensor& alias : aliases_) {
    if (!text.empty()) text += ", ";
    text += c10::toString(alias.scalar_type()) + c10::str(alias.sizes());
  }
  return text;
}

}  // namespace gapless::torch_device
