#include "drivers/sim/private_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <stdexcept>

#include "drivers/sim/fault_report.h"

namespace gapless::sim {
namespace {

constexpr uint64_t kPageBytes = 4096;

uint64_t whole_pages(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

[[noreturn]] void refuse(uint64_t bytes, const char* what) {
  throw std::runtime_error("the simulated device's memory of " + std::to_string(bytes >> 20) +
                           " MiB cannot be mapped (" + what + ": " + std::strerror(errno) +
                           "); set GAPLESS_SIM_MEMORY lower");
}

}  // namespace

PrivateMemory::PrivateMemory(int device, uint64_t total_bytes)
    : total_bytes_(whole_pages(total_bytes)) {
  file_ = memfd_create("gapless sim memory", MFD_CLOEXEC);
  if (file_ < 0) refuse(total_bytes, "memfd_create");
  if (ftruncate(file_, static_cast<off_t>(total_bytes_)) != 0) refuse(total_bytes, "ftruncate");
  void* own =
      mmap(nullptr, total_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (own == MAP_FAILED) refuse(total_bytes, "mmap");
  void* shown =
      mmap(nullptr, total_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (shown == MAP_FAILED) refuse(total_bytes, "mmap");
  own_ = static_cast<char*>(own);
  shown_ = static_cast<char*>(shown);
  free_[0] = total_bytes_;
  report_faults_in(device, shown_, total_bytes_);
}

uint64_t PrivateMemory::free_bytes() {
  std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& range : free_) bytes += range.second;
  return bytes;
}

void* PrivateMemory::allocate(uint64_t bytes) {
  const uint64_t wanted = whole_pages(bytes);
  std::lock_guard lock(mutex_);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, length] = *range;
    if (length < wanted) continue;
    free_.erase(range);
    if (length > wanted) free_[offset + wanted] = length - wanted;
    return shown_ + offset;
  }
  return nullptr;
}

void PrivateMemory::free(void* address, uint64_t bytes) {
  uint64_t offset = static_cast<uint64_t>(static_cast<char*>(address) - shown_);
  uint64_t length = whole_pages(bytes);
  // Back to the system; what is allocated there next reads as zeros.
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(length));
  std::lock_guard lock(mutex_);
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && offset + length == after->first) {
    length += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  free_[offset] = length;
}

bool PrivateMemory::holds(const void* address, uint64_t bytes) const {
  const char* first = static_cast<const char*>(address);
  return first >= shown_ && first + bytes <= shown_ + total_bytes_;
}

void* PrivateMemory::own(const void* address) const {
  return own_ + (static_cast<const char*>(address) - shown_);
}

}  // namespace gapless::sim
