// Python's face of what carries captured steps between processes, in gapless._C.
#pragma once

#include <pybind11/pybind11.h>

namespace gapless::torch_device {

void bind_steps(pybind11::module_& m);

}  // namespace gapless::torch_device
