// Walking an operator's boxed arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>

namespace gapless::torch_device {

// Calls `visit` for each defined tensor in the value, inside lists too.
template <typename F>
void for_each_tensor(const c10::IValue& value, F&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (tensor.defined()) visit(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      if (tensor.has_value() && tensor->defined()) visit(*tensor);
    }
  }
}

// The value with every defined tensor replaced, and every device of ours by `device`.
template <typename F>
c10::IValue mapped(const c10::IValue& value, c10::Device device, F&& map) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(map(value.toTensor())) : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorList()) {
      list.push_back(tensor.defined() ? map(tensor) : tensor);
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      if (tensor.has_value() && tensor->defined()) {
        list.push_back(map(*tensor));
      } else {
        list.push_back(tensor);
      }
    }
    return list;
  }
  if (value.isDevice() && value.toDevice().is_privateuseone()) return device;
  return value;
}

}  // namespace gapless::torch_device
