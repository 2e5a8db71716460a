// Kinds of tensors that the device does not have, refused with what to do instead.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace gapless::torch_device {
namespace {

void refuse(const c10::OperatorHandle& op, const char* kind, const char* remedy) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, c10::toString(op.operator_name()),
                              ": the device gapless has no ", kind, " tensors; ", remedy);
}

void refuse_sparse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(op, "sparse", "use .to_dense() before .to('gapless'), or compute with it on the CPU");
}

void refuse_quantised(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(op, "quantised",
         "use .dequantize() before .to('gapless'), or keep the integers and scales as tensors");
}

void refuse_nested(const c10::OperatorHandle& op, torch::jit::Stack*) {
  refuse(op, "nested", "pad with torch.nested.to_padded_tensor, or use layout=torch.jagged");
}

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
}

TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_quantised>());
}

TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_nested>());
}

}  // namespace
}  // namespace gapless::torch_device
