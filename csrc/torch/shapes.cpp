#include "torch/shapes.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <c10/core/DefaultDtype.h>

#include <string>
#include <unordered_map>

#include "torch/alias.h"
#include "torch/arguments.h"
#include "torch/shape_corrections.h"
#include "torch/shape_functions.h"

namespace gapless::torch_device {
namespace {

using c10::IValue;

constexpr size_t kRemembered = 4096;

// An unambiguous text of everything that a shape function may look at. False where an argument has
// no such text; then nothing is remembered.
class Key {
 public:
  explicit Key(const c10::OperatorHandle& op) {
    add(&op.schema());
    // What integers become where a result has to be floating.
    text_ += static_cast<char>(c10::get_default_dtype_as_scalartype());
  }

  bool add_argument(const IValue& value) {
    if (value.isTensor()) {
      add_tensor(value.toTensor());
    } else if (value.isInt()) {
      add_tagged('i', value.toInt());
    } else if (value.isBool()) {
      add_tagged('b', value.toBool());
    } else if (value.isDouble()) {
      add_tagged('d', value.toDouble());
    } else if (value.isNone()) {
      text_ += 'n';
    } else if (value.isIntList()) {
      const auto list = value.toIntVector();
      add_tagged('l', list.size());
      for (int64_t item : list) add(item);
    } else if (value.isBoolList()) {
      const auto list = value.toBoolList();
      add_tagged('B', list.size());
      for (bool item : list) add(item);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      size_t count = 0;
      const size_t at = text_.size();
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        add_tensor(tensor);
        ++count;
      });
      // Undefined entries shift the meaning of those after them.
      if (count != value.toListRef().size()) return false;
      text_.insert(at, "L" + std::to_string(count) + ";");
    } else if (value.isString()) {
      add_tagged('s', value.toStringRef().size());
      text_ += value.toStringRef();
    } else if (value.isDoubleList()) {
      const auto list = value.toDoubleVector();
      add_tagged('f', list.size());
      for (double item : list) add(item);
    } else if (value.isComplexDouble()) {
      add_tagged('z', value.toComplexDouble());
    } else if (value.isGenerator()) {
      text_ += 'G';
    } else if (value.isDevice()) {
      text_ += 'D';
    } else {
      return false;
    }
    return true;
  }

  std::string take() { return std::move(text_); }

 private:
  template <typename T>
  void add(const T& value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  template <typename T>
  void add_tagged(char tag, const T& value) {
    text_ += tag;
    add(value);
  }
  void add_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      text_ += 'u';
      return;
    }
    text_ += tensor.unsafeGetTensorImpl()->is_wrapped_number() ? 'w' : 't';
    text_ += tensor.is_cpu() ? 'c' : 'g';
    text_ += static_cast<char>(tensor.scalar_type());
    text_ += static_cast<char>(tensor.dim());
    for (int64_t size : tensor.sizes()) add(size);
    for (int64_t stride : tensor.strides()) add(stride);
  }

  std::string text_;
};

TensorShape shape_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {true, tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()};
}

ResultShapes call_shape_function(const c10::OperatorHandle& op, c10::ArrayRef<IValue> arguments) {
  if (const auto own = own_shape_function(op)) return own(arguments);
  torch::jit::Stack stack;
  for (const auto& value : arguments) {
    // Host scalars mix with any device, and are asserted to be on the host when they reach Python.
    stack.push_back(mapped(value, c10::kMeta, [](const at::Tensor& tensor) {
      return tensor.is_cpu() && tensor.dim() == 0 ? tensor : alias_as_meta(tensor);
    }));
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
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
  correct_shapes(op, arguments, &results);
  return results;
}

}  // namespace

std::shared_ptr<const ResultShapes> infer_shapes(const c10::OperatorHandle& op,
                                                 c10::ArrayRef<IValue> arguments) {
  Key key(op);
  bool has_key = true;
  for (const auto& value : arguments) has_key = has_key && key.add_argument(value);
  if (!has_key) return std::make_shared<ResultShapes>(call_shape_function(op, arguments));
  thread_local std::unordered_map<std::string, std::shared_ptr<const ResultShapes>> known;
  std::string text = key.take();
  if (auto found = known.find(text); found != known.end()) return found->second;
  auto shapes = std::make_shared<const ResultShapes>(call_shape_function(op, arguments));
  if (known.size() >= kRemembered) known.clear();
  known.emplace(std::move(text), shapes);
  return shapes;
}

}  // namespace gapless::torch_device
