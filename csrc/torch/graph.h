// Graphs, as PyTorch's GraphImplInterface.
#pragma once

namespace gapless::torch_device {

// To be called once, after the backend got its name: the registry's key is that name in upper case.
void register_graphs();

}  // namespace gapless::torch_device
