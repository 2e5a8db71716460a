// A tensor of a queued work: a bare address and a layout, made a tensor where the kernel runs.
//
// The submitting thread only writes numbers. Tensors are made by the stream's thread, which keeps
// those that it made before and gives them a new address: two allocations less per operand, on the
// thread that has no time to lose.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gapless::torch_device {

class Operand {
 public:
  Operand() = default;
  // Of a device tensor, the address under which kernels on a stream's thread reach the memory (see
  // alias_on_cpu). Of a CPU tensor of one element, its value as it is now. Undefined stays
  // undefined.
  explicit Operand(const at::Tensor& tensor);

  // CPU tensors that are larger need a snapshot of their own.
  static bool fits(const at::Tensor& tensor) {
    return tensor.is_privateuseone() || (tensor.numel() == 1 && tensor.itemsize() <= kValueBytes);
  }

  bool defined() const { return defined_; }
  // A CPU tensor over the memory. Valid as long as the operand, which may hold the value itself.
  at::Tensor alias() const;
  // One that shares the storage of another operand's alias, which it must be in the same memory as:
  // kernels tell from the storage whether their output overlaps an input.
  at::Tensor alias_in(const c10::Storage& storage) const;
  bool same_memory(const Operand& other) const {
    return defined_ && other.defined_ && !is_value_ && address_ && address_ == other.address_;
  }

 private:
  friend class AliasPool;
  static constexpr size_t kValueBytes = 16;

  c10::IntArrayRef sizes() const { return {layout_.data(), layout_.size() / 2}; }
  c10::IntArrayRef strides() const {
    return {layout_.data() + layout_.size() / 2, layout_.size() / 2};
  }
  void* address() const { return is_value_ ? const_cast<std::byte*>(value_) : address_; }

  alignas(16) std::byte value_[kValueBytes];
  void* address_ = nullptr;
  size_t bytes_ = 0;  // of the storage
  int64_t offset_ = 0;
  c10::SmallVector<int64_t, 8> layout_;  // sizes, then strides
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
  bool defined_ = false;
  bool is_value_ = false;
  bool is_wrapped_number_ = false;
  bool is_conj_ = false;
  bool is_neg_ = false;
};

// Tensors of one thread that stand for operands, one kernel after the other.
class AliasPool {
 public:
  at::Tensor take(const Operand& operand);
  // Keeps the tensor for another operand, where the kernel has left it as it was and nobody else
  // refers to it.
  void give_back(at::Tensor tensor);

 private:
  static constexpr size_t kKept = 64;  // per dtype
  std::vector<at::Tensor>& kept(c10::ScalarType dtype, bool is_wrapped_number);

  std::vector<at::Tensor> kept_[2][static_cast<size_t>(c10::ScalarType::NumOptions)];
};

}  // namespace gapless::torch_device
