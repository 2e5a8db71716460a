// The runtime's exceptions, as PyTorch's.
#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "runtime/failure.h"

namespace gapless::torch_device {

template <typename F>
decltype(auto) translated(F&& f) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  try {
    return f();
  } catch (const OutOfMemory& error) {
    throw c10::OutOfMemoryError(here, error.what());
  } catch (const DeviceError& error) {
    throw c10::AcceleratorError(here, 1, error.what());
  } catch (const UsageError& error) {
    throw c10::Error(here, error.what());
  }
}

}  // namespace gapless::torch_device
