#include "torch/cost.h"

#include <cstring>
#include <string_view>

#include "torch/arguments.h"

namespace gapless::torch_device {
namespace {

// Where the two factors of a product are among the arguments.
struct Product {
  std::string_view name;
  size_t left;
  size_t right;
};

constexpr Product kProducts[] = {
    {"aten::mm", 0, 1},      {"aten::bmm", 0, 1},    {"aten::addmm", 1, 2},
    {"aten::baddbmm", 1, 2}, {"aten::addbmm", 1, 2}, {"aten::mv", 0, 1},
    {"aten::addmv", 1, 2},   {"aten::linear", 0, 1}, {"aten::dot", 0, 1},
};

double product_flops(const at::Tensor& left, const at::Tensor& right, bool transposed) {
  if (left.dim() == 0 || right.dim() == 0) return 0;
  // Each element of the left factor meets as many columns as the right one has.
  const int64_t columns = right.dim() == 1 ? 1 : right.size(transposed ? 0 : -1);
  return 2.0 * static_cast<double>(left.numel()) * static_cast<double>(columns);
}

double flops_of(std::string_view name, const torch::jit::Stack& arguments) {
  const std::string_view base = name.substr(0, name.find('.'));
  if (base == "aten::_scaled_dot_product_flash_attention_for_cpu") {
    // Scores and their product with the values.
    return 2 * 2.0 * static_cast<double>(arguments[0].toTensor().numel()) *
           static_cast<double>(arguments[1].toTensor().size(-2));
  }
  for (const Product& product : kProducts) {
    if (product.name != base) continue;
    return product_flops(arguments[product.left].toTensor(), arguments[product.right].toTensor(),
                         base == "aten::linear");
  }
  return 0;
}

}  // namespace

WorkCost cost_of(const char* name, const torch::jit::Stack& arguments,
                 const std::vector<at::Tensor>& outputs) {
  WorkCost cost;
  cost.operators = 1;
  auto count = [&](const at::Tensor& tensor) { cost.bytes += tensor.nbytes(); };
  for (const auto& value : arguments) for_each_tensor(value, count);
  for (const auto& output : outputs) {
    if (output.defined()) count(output);
  }
  cost.flops = flops_of(name, arguments);
  return cost;
}

}  // namespace gapless::torch_device
