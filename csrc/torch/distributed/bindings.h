// The backend's Python face, in gapless._C.
#pragma once

#include <pybind11/pybind11.h>

namespace gapless::torch_device {

void bind_distributed(pybind11::module_& m);

}  // namespace gapless::torch_device
