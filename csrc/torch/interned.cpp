#include "torch/interned.h"

#include <mutex>
#include <unordered_set>

namespace gapless::torch_device {

const char* interned(const std::string& text) {
  static std::mutex mutex;
  static auto* const texts = new std::unordered_set<std::string>;
  std::lock_guard lock(mutex);
  return texts->insert(text).first->c_str();
}

}  // namespace gapless::torch_device
