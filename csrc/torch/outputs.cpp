#include "torch/outputs.h"

#include <ATen/native/Resize.h>

#include "torch/arguments.h"
#include "torch/shapes.h"

namespace gapless::torch_device {
namespace {

using c10::IValue;

// What PyTorch's own wrappers allocate fits, or is empty. The lookup of shapes is for what a user
// may have brought, which Python betrays.
bool may_misfit(const OpPlan& plan, const at::Tensor& output) {
  return !plan.gets_sized_outputs || output.numel() == 0 ||
         output.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr;
}

bool has_mask(c10::ArrayRef<IValue> arguments) {
  bool found = false;
  for (const auto& value : arguments) {
    if (!value.isOptionalTensorList() && !value.isTensorList()) continue;
    for_each_tensor(value, [&](const at::Tensor& index) {
      found |= index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
    });
  }
  return found;
}

void resize(const OpPlan& plan, const at::Tensor& output, const TensorShape& shape) {
  if (!shape.defined || output.sizes() == shape.sizes) return;
  if (plan.sized_by_count && output.numel() == c10::multiply_integers(shape.sizes)) return;
  at::native::resize_output(output, shape.sizes);
  if (output.strides() != shape.strides) {
    output.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides);
  }
}

// An out= kernel of an elementwise operator lays an unsized output out as its inputs are. The shape
// functions of out= variants do not; those of the functional variants do.
std::shared_ptr<const ResultShapes> elementwise_layout(const OpPlan& plan,
                                                       c10::ArrayRef<IValue> arguments) {
  if (!plan.elementwise || plan.outputs.size() != 1) return nullptr;
  const IValue& output = arguments[plan.outputs[0]];
  if (!output.isTensor() || output.toTensor().numel() != 0) return nullptr;
  return infer_shapes(*plan.elementwise, arguments.slice(0, plan.outputs[0]));
}

}  // namespace

bool size_outputs(const c10::OperatorHandle& op, const OpPlan& plan,
                  c10::ArrayRef<IValue> arguments) {
  bool lookup = false, from_python = false;
  for (size_t i : plan.outputs) {
    for_each_tensor(arguments[i], [&](const at::Tensor& output) {
      lookup |= may_misfit(plan, output);
      from_python |= output.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() != nullptr;
    });
  }
  if (!lookup) return true;
  // How many values a mask selects no shape function can tell; the wrapper has counted them.
  if (plan.takes_host_tensors && has_mask(arguments)) return !from_python;
  std::shared_ptr<const ResultShapes> shapes;
  if (plan.has_shape_function && !plan.returned.empty()) {
    shapes = infer_output_shapes(op, plan, arguments);
    const auto layout = elementwise_layout(plan, arguments);
    if (layout && (*layout)[0].tensors[0].sizes == (*shapes)[0].tensors[0].sizes) shapes = layout;
  } else if (plan.functional && plan_of(*plan.functional).kind == OpKind::kFunctional) {
    torch::jit::Stack inputs;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!plan.is_output(i)) inputs.push_back(arguments[i]);
    }
    shapes = infer_shapes(*plan.functional, inputs);
  } else {
    return false;
  }
  for (size_t r = 0; r < shapes->size() && r < plan.outputs.size(); ++r) {
    size_t i = 0;
    for_each_tensor(arguments[plan.outputs[r]], [&](const at::Tensor& output) {
      const auto& tensors = (*shapes)[r].tensors;
      if (i < tensors.size()) resize(plan, output, tensors[i++]);
    });
  }
  return true;
}

void store_resized(const OpPlan& plan, const IValue& results, const IValue& outputs) {
  auto store = [&](const at::Tensor& result, const at::Tensor& output) {
    TORCH_CHECK(c10::canCast(result.scalar_type(), output.scalar_type()), plan.name,
                ": result type ", result.scalar_type(),
                " can't be cast to the desired output type ", output.scalar_type());
    at::native::resize_output(output, result.sizes());
    output.copy_(result, /*non_blocking=*/true);
  };
  if (results.isTensor()) {
    store(results.toTensor(), outputs.toTensor());
    return;
  }
  const auto fresh = results.toTensorVector(), given = outputs.toTensorVector();
  TORCH_CHECK(fresh.size() == given.size(), plan.name, ": ", given.size(), " outputs given for ",
              fresh.size(), " results");
  for (size_t i = 0; i < fresh.size(); ++i) store(fresh[i], given[i]);
}

}  // namespace gapless::torch_device
