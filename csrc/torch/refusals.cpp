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

// What would make such a tensor from one of ours.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {"_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr",
                           "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_sparse>());
  }
  for (const char* name :
       {"quantize_per_tensor", "quantize_per_tensor.tensor_qparams", "quantize_per_tensor.tensors",
        "quantize_per_tensor_dynamic", "quantize_per_channel", "_make_per_tensor_quantized_tensor",
        "_make_per_channel_quantized_tensor"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse_quantised>());
  }
}

}  // namespace
}  // namespace gapless::torch_device
