// Lets a tensor of the host become one of the device in place, and back.
//
// `module.to("gapless")` then changes its parameters where they are, as on other devices, rather
// than replacing them: tied weights stay tied, and an optimizer made before keeps its parameters.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace gapless::torch_device {
namespace {

// A plain tensor, whose implementation holds nothing beside what a shallow copy takes over.
bool is_plain(const at::Tensor& tensor) {
  return (tensor.is_cpu() || tensor.is_privateuseone()) && tensor.layout() == at::kStrided &&
         !tensor.is_quantized() && !tensor.unsafeGetTensorImpl()->is_python_dispatch();
}

bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  return is_plain(self) && is_plain(from);
}

// Reached wherever one of the two is on the device.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

}  // namespace
}  // namespace gapless::torch_device
