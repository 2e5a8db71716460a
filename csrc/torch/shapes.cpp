#include "torch/shapes.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "torch/alias.h"
#include "torch/arguments.h"
#include "torch/native_shapes.h"
#include "torch/shape_corrections.h"
#include "torch/shape_functions.h"

namespace gapless::torch_device {
namespace {

using c10::IValue;

constexpr size_t kRemembered = 4096;

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using Known =
    std::unordered_map<std::string, std::shared_ptr<const ResultShapes>, TextHash, std::equal_to<>>;

Known& known() {
  thread_local Known known;
  return known;
}

TensorShape shape_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {true, tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()};
}

ResultShapes call_shape_function(const c10::OperatorHandle& op, c10::ArrayRef<IValue> arguments) {
  if (const auto own = own_shape_function(op)) return own(arguments);
  if (ResultShapes native = native_shapes(op, arguments); !native.empty()) return native;
  torch::jit::Stack stack;
  for (const auto& value : arguments) {
    // Host scalars mix with any device, and are asserted to be on the host when they reach Python.
    stack.push_back(mapped(value, c10::kMeta, [](const at::Tensor& tensor) {
      return tensor.is_cpu() && tensor.dim() == 0 ? tensor : alias_as_meta(tensor);
    }));
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  ResultShapes results = shapes_of(stack);
  correct_shapes(op, arguments, &results);
  return results;
}

// The arguments with unsized outputs in the place of the caller's: what the operator would give by
// itself, and no warning of the shape function about the size of outputs.
torch::jit::Stack without_sizes(const OpPlan& plan, c10::ArrayRef<IValue> arguments) {
  torch::jit::Stack probe(arguments.begin(), arguments.end());
  for (size_t i : plan.outputs) {
    probe[i] = mapped(arguments[i], c10::kMeta, [](const at::Tensor& output) {
      return at::empty({0}, output.options().device(c10::kMeta));
    });
  }
  return probe;
}

}  // namespace

ResultShapes shapes_of(const torch::jit::Stack& stack) {
  ResultShapes results;
  for (const auto& value : stack) {
    ResultShape result;
    result.is_list = value.isTensorList();
    if (result.is_list) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        result.tensors.push_back(shape_of(tensor));
      }
    } else {
      result.tensors.push_back(shape_of(value.toTensor()));
    }
    results.push_back(std::move(result));
  }
  return results;
}

std::shared_ptr<const ResultShapes> remembered(const ShapeKey& key) {
  if (!key.complete()) return nullptr;
  const auto found = known().find(key.text());
  return found == known().end() ? nullptr : found->second;
}

void remember(const ShapeKey& key, std::shared_ptr<const ResultShapes> shapes) {
  if (!key.complete()) return;
  if (known().size() >= kRemembered) known().clear();
  known().emplace(key.text(), std::move(shapes));
}

std::shared_ptr<const ResultShapes> infer_shapes(const c10::OperatorHandle& op,
                                                 c10::ArrayRef<IValue> arguments) {
  ShapeKey key(op, ShapeKey::Purpose::kShapeFunction);
  for (const auto& value : arguments) key.add_argument(value);
  if (auto shapes = remembered(key)) return shapes;
  auto shapes = std::make_shared<const ResultShapes>(call_shape_function(op, arguments));
  remember(key, shapes);
  return shapes;
}

std::shared_ptr<const ResultShapes> infer_output_shapes(const c10::OperatorHandle& op,
                                                        const OpPlan& plan,
                                                        c10::ArrayRef<IValue> arguments) {
  ShapeKey key(op, ShapeKey::Purpose::kOutputs);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (plan.is_output(i)) {
      key.add_output(arguments[i]);
    } else {
      key.add_argument(arguments[i]);
    }
  }
  if (auto shapes = remembered(key)) return shapes;
  auto shapes =
      std::make_shared<const ResultShapes>(call_shape_function(op, without_sizes(plan, arguments)));
  remember(key, shapes);
  return shapes;
}

}  // namespace gapless::torch_device
