// A compiled program: a shared object of AOTInductor, launched as one piece of work.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace torch::inductor {
class AOTIModelContainerRunner;
}

namespace gapless::torch_device {

// What it was compiled from has CPU tensors where this gets device tensors, returns nothing, and
// writes its results to operands. May be launched from any thread, on any stream.
class Program {
 public:
  // Loads the shared object: runs code of it, so that it must come from a place that one trusts.
  // `name` is what works, errors and the timeline call it.
  Program(const std::string& path, const std::string& name);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Queues one run on the device's current stream. Operands are device tensors of one device, in
  // the order of compilation, and CPU tensors of one element, taken as they are now. `written`
  // tells for each whether the program writes to it. Their layouts have to be those that it was
  // compiled for: the program does not check them.
  void launch(const std::vector<at::Tensor>& operands, const std::vector<bool>& written) const;

 private:
  const char* const name_;
  std::shared_ptr<torch::inductor::AOTIModelContainerRunner> runner_;
};

}  // namespace gapless::torch_device
