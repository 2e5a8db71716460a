// An unambiguous text of everything that a shape function may look at: an operator, the layouts of
// its tensors and its other arguments.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <string_view>

namespace gapless::torch_device {

class ShapeKey {
 public:
  // What is remembered for one purpose says nothing for another.
  enum class Purpose : char { kShapeFunction, kOutputs, kWrapper };
  ShapeKey(const c10::OperatorHandle& op, Purpose purpose);

  void add_argument(const c10::IValue& value);
  // Of a number that takes part in the arithmetic: an integer's value may be refused, others'
  // never.
  void add_number(const c10::IValue& value);
  // Of an argument that the operator resizes itself, which tells no more than its dtype.
  void add_output(const c10::IValue& value);

  // False where an argument has no such text; then nothing may be remembered.
  bool complete() const { return complete_; }
  std::string_view text() const { return {text_.data(), text_.size()}; }

 private:
  template <typename T>
  void add(const T& value) {
    const auto* bytes = reinterpret_cast<const char*>(&value);
    text_.append(bytes, bytes + sizeof(value));
  }
  template <typename T>
  void add_tagged(char tag, const T& value) {
    text_.push_back(tag);
    add(value);
  }
  void add_tensor(const at::Tensor& tensor);

  c10::SmallVector<char, 320> text_;
  bool complete_ = true;
};

}  // namespace gapless::torch_device
