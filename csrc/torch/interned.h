// Texts that live as long as the process, so that works and records can point to them.
#pragma once

#include <string>

namespace gapless::torch_device {

const char* interned(const std::string& text);

}  // namespace gapless::torch_device
