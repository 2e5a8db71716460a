// Memory of a simulated device, mapped twice: tensors carry addresses in a range that faults, the
// device works through another one.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace gapless::sim {

class PrivateMemory {
 public:
  PrivateMemory(int device, uint64_t total_bytes);
  PrivateMemory(const PrivateMemory&) = delete;
  PrivateMemory& operator=(const PrivateMemory&) = delete;

  // From the address that tensors carry to the device's own.
  int64_t offset_bytes() const { return own_ - shown_; }
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t free_bytes();

  // An address that tensors may carry, or nullptr where no free range is as long.
  void* allocate(uint64_t bytes);
  void free(void* address, uint64_t bytes);

  bool holds(const void* address, uint64_t bytes) const;
  void* own(const void* address) const;

 private:
  const uint64_t total_bytes_;
  int file_ = -1;
  char* shown_ = nullptr;
  char* own_ = nullptr;
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // offset to bytes; neighbours are joined
};

}  // namespace gapless::sim
