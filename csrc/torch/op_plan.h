// What the fallback needs to know of an operator, found from its schema once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace gapless::torch_device {

enum class OpKind {
  kMutating,    // every result is an argument that is written to: submit
  kFunctional,  // results are fresh and a shape function gives their sizes: infer, allocate, submit
  kHost,        // results depend on values, or are no tensors: wait and run
  kView,        // results alias arguments: needs a kernel of its own
};

struct OpPlan {
  OpKind kind;
  const char* name;         // "aten::add.out", lives as long as the process
  std::string host_reason;  // why kHost
  bool is_out = false;      // an out= variant, whose outputs may come unsized
  bool has_shape_function = false;
  std::vector<size_t> written;      // arguments that are written to
  std::vector<size_t> outputs;      // of those, the ones of an out= variant that it may resize
  std::vector<int> returned;        // per result: the argument that it is, or -1
  int generator = -1;               // the argument that takes a generator
  bool takes_host_tensors = false;  // indexing: CPU tensors of any size are welcome
  // Of an out= variant that cannot tell its outputs' sizes: the variant that returns fresh results.
  std::optional<c10::OperatorHandle> functional;
  // Of an elementwise out= variant, the one that returns fresh results: its shape function tells
  // the layout, too.
  std::optional<c10::OperatorHandle> elementwise;
  // An out= variant whose kernel changes the output's conjugate bit, which the alias that it gets
  // would take to the grave: the functional variant is queued, and its result copied.
  bool queues_functional = false;
  // PyTorch's own wrapper allocates the outputs before it calls this out= variant.
  bool gets_sized_outputs = false;
  // PyTorch's own wrapper checks the operands and sizes the results in C++ before it calls the out=
  // variant; what it found is remembered, and the out= variant queued without it.
  bool has_wrapper = false;
  const OpPlan* out_plan = nullptr;  // of that variant, where the results are fresh
  std::optional<c10::OperatorHandle> out_variant;
  size_t arguments = 0;
  std::vector<bool> is_number;  // per argument: a Scalar
  bool sized_by_count = false;  // an output with as many elements keeps its shape

  bool is_output(size_t argument) const {
    return std::find(outputs.begin(), outputs.end(), argument) != outputs.end();
  }
};

// Whether PyTorch's own wrapper would run where the device has no kernel, and the CPU has one.
bool has_wrapper(const c10::OperatorHandle& op);

const OpPlan& plan_of(const c10::OperatorHandle& op);

}  // namespace gapless::torch_device
