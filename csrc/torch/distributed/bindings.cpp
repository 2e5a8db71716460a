#include "torch/distributed/bindings.h"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "torch/distributed/backend.h"

namespace gapless::torch_device {

void bind_distributed(pybind11::module_& m) {
  m.def("distributed_backend",
        [](c10::intrusive_ptr<c10d::Backend> transport, int rank, int size,
           std::chrono::milliseconds timeout) -> c10::intrusive_ptr<c10d::Backend> {
          return c10::make_intrusive<DistributedBackend>(std::move(transport), rank, size, timeout);
        });
}

}  // namespace gapless::torch_device
