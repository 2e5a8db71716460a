#include "torch/shape_key.h"

#include <c10/core/DefaultDtype.h>

#include "torch/arguments.h"

namespace gapless::torch_device {

ShapeKey::ShapeKey(const c10::OperatorHandle& op, Purpose purpose) {
  add(&op.schema());
  text_.push_back(static_cast<char>(purpose));
  // What integers become where a result has to be floating.
  text_.push_back(static_cast<char>(c10::get_default_dtype_as_scalartype()));
}

void ShapeKey::add_argument(const c10::IValue& value) {
  if (value.isTensor()) {
    add_tensor(value.toTensor());
  } else if (value.isInt()) {
    add_tagged('i', value.toInt());
  } else if (value.isBool()) {
    add_tagged('b', value.toBool());
  } else if (value.isDouble()) {
    add_tagged('d', value.toDouble());
  } else if (value.isNone()) {
    text_.push_back('n');
  } else if (value.isIntList()) {
    const auto list = value.toIntVector();
    add_tagged('l', list.size());
    for (int64_t item : list) add(item);
  } else if (value.isBoolList()) {
    const auto list = value.toBoolList();
    add_tagged('B', list.size());
    for (bool item : list) add(item);
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    const size_t count = value.toListRef().size();
    add_tagged('L', count);
    size_t defined = 0;
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      add_tensor(tensor);
      ++defined;
    });
    // Undefined entries shift the meaning of those after them.
    complete_ = complete_ && defined == count;
  } else if (value.isString()) {
    const auto& text = value.toStringRef();
    add_tagged('s', text.size());
    text_.append(text.begin(), text.end());
  } else if (value.isDoubleList()) {
    const auto list = value.toDoubleVector();
    add_tagged('f', list.size());
    for (double item : list) add(item);
  } else if (value.isComplexDouble()) {
    add_tagged('z', value.toComplexDouble());
  } else if (value.isGenerator()) {
    text_.push_back('G');
  } else if (value.isDevice()) {
    text_.push_back('v');
  } else {
    complete_ = false;
  }
}

void ShapeKey::add_number(const c10::IValue& value) {
  if (value.isDouble()) {
    text_.push_back('D');
  } else if (value.isComplexDouble()) {
    text_.push_back('Z');
  } else {
    add_argument(value);
  }
}

void ShapeKey::add_output(const c10::IValue& value) {
  text_.push_back('o');
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    text_.push_back(static_cast<char>(tensor.scalar_type()));
  });
}

void ShapeKey::add_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    text_.push_back('u');
    return;
  }
  text_.push_back(tensor.unsafeGetTensorImpl()->is_wrapped_number() ? 'w' : 't');
  text_.push_back(tensor.is_cpu() ? 'c' : 'g');
  text_.push_back(static_cast<char>(tensor.scalar_type()));
  text_.push_back(static_cast<char>(tensor.dim()));
  for (int64_t size : tensor.sizes()) add(size);
  for (int64_t stride : tensor.strides()) add(stride);
}

}  // namespace gapless::torch_device
