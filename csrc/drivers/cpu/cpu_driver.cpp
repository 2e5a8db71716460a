#include "drivers/cpu/cpu_driver.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "drivers/cpu/cores.h"
#include "drivers/cpu/thread_team.h"
#include "drivers/settings.h"

namespace gapless::cpu {
namespace {

constexpr uint64_t kHugePageBytes = 2u << 20;
constexpr int kMaxDevices = 64;

thread_local std::string t_error;
CorePlan g_plan;
std::vector<std::vector<int>> g_device_cores;  // per device
int g_nice = -5;

gapless_status fail(gapless_status status, std::string text) {
  t_error = std::move(text);
  return status;
}

uint64_t read_number(const char* path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : 0;
}

uint64_t read_meminfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    uint64_t kib = 0;
    file >> kib;
    if (name == key + ":") return kib * 1024;
    file.ignore(256, '\n');
  }
  return 0;
}

gapless_status memory_info(int, uint64_t* free_bytes, uint64_t* total_bytes) {
  *total_bytes = read_meminfo("MemTotal");
  *free_bytes = read_meminfo("MemAvailable");
  // In a container the group's limit comes first ("max" reads as 0: no limit).
  if (uint64_t limit = read_number("/sys/fs/cgroup/memory.max"); limit && limit < *total_bytes) {
    const uint64_t used = std::min(limit, read_number("/sys/fs/cgroup/memory.current"));
    *total_bytes = limit;
    *free_bytes = std::min(*free_bytes, limit - used);
  }
  return GAPLESS_OK;
}

// Each device gets its share of the device's cores, or all of them where there are too few.
void share_cores(int devices) {
  const auto& cores = g_plan.device_cores;
  const size_t share = cores.size() / static_cast<size_t>(devices);
  for (int i = 0; i < devices; ++i) {
    const auto first = cores.begin() + static_cast<std::ptrdiff_t>(share) * i;
    g_device_cores.push_back(
        share == 0 ? cores : std::vector<int>(first, first + static_cast<std::ptrdiff_t>(share)));
  }
}

gapless_status init() {
  try {
    g_plan = plan_cores();
    g_nice = static_cast<int>(settings::whole("GAPLESS_DEVICE_NICE", g_nice, -20, 19));
    share_cores(static_cast<int>(settings::whole("GAPLESS_NUM_DEVICES", 1, 1, kMaxDevices)));
  } catch (const std::exception& error) {
    return fail(GAPLESS_INVALID_ARGUMENT, error.what());
  }
  return GAPLESS_OK;
}

int device_count() { return static_cast<int>(g_device_cores.size()); }

gapless_status device_properties(int device, gapless_device_properties* out) {
  if (device < 0 || device >= device_count()) {
    return fail(GAPLESS_INVALID_ARGUMENT, "the cpu driver has no device " + std::to_string(device) +
                                              "; GAPLESS_NUM_DEVICES gives it " +
                                              std::to_string(device_count()));
  }
  std::memset(out, 0, sizeof(*out));
  std::strncpy(out->name, "gapless cpu", sizeof(out->name) - 1);
  uint64_t free_bytes = 0;
  memory_info(device, &free_bytes, &out->total_memory_bytes);
  out->cores = static_cast<uint32_t>(g_device_cores[static_cast<size_t>(device)].size());
  out->memory_access = GAPLESS_MEMORY_SHARED;
  out->computes = 1;
  out->zeroed_from_bytes = kHugePageBytes;
  return GAPLESS_OK;
}

uint64_t whole_pages(uint64_t bytes) {
  static const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

// Whole huge pages come from the system and go back to it. Among the small blocks of the C
// library's heap they would leave holes that it keeps.
void* map_huge_pages(uint64_t bytes) {
  const uint64_t mapped = bytes + kHugePageBytes;
  void* begin = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t address = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (address > start) munmap(begin, address - start);
  const uintptr_t end = start + mapped, used_end = address + whole_pages(bytes);
  if (end > used_end) munmap(reinterpret_cast<void*>(used_end), end - used_end);
  void* memory = reinterpret_cast<void*>(address);
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

void release_memory(void* address, uint64_t bytes) {
  if (bytes >= kHugePageBytes) {
    munmap(address, whole_pages(bytes));
  } else {
    std::free(address);
  }
}

gapless_status map_memory(uint64_t bytes, void** out) {
  // Linux hands out more address space than there is memory and kills the process later; an error
  // now is worth the look at what is free. Small blocks are not worth it.
  if (bytes >= kHugePageBytes) {
    uint64_t free_bytes = 0, total_bytes = 0;
    memory_info(0, &free_bytes, &total_bytes);
    if (bytes > free_bytes) {
      return fail(GAPLESS_OUT_OF_MEMORY, "the machine has " + std::to_string(free_bytes >> 20) +
                                             " MiB free of " + std::to_string(total_bytes >> 20) +
                                             " MiB");
    }
  }
  void* address = nullptr;
  if (bytes >= kHugePageBytes) {
    address = map_huge_pages(bytes);
  } else if (posix_memalign(&address, 64, bytes) != 0) {
    address = nullptr;
  }
  if (!address) {
    return fail(GAPLESS_OUT_OF_MEMORY, "the operating system refused the memory");
  }
  *out = address;
  return GAPLESS_OK;
}

gapless_status memory_alloc(int, uint64_t bytes, void** out) { return map_memory(bytes, out); }

gapless_status memory_free(int, void* address, uint64_t bytes) {
  release_memory(address, bytes);
  return GAPLESS_OK;
}

gapless_status host_alloc(uint64_t bytes, void** out) { return map_memory(bytes, out); }

gapless_status host_free(void* address, uint64_t bytes) {
  release_memory(address, bytes);
  return GAPLESS_OK;
}

gapless_status stream_enter(int device, int, int priority) {
  place_thread(g_device_cores[static_cast<size_t>(device)], std::clamp(g_nice + priority, -20, 19));
  return GAPLESS_OK;
}

void stream_leave(int, int) {}

gapless_status copy(int, int, void* destination, const void* source, uint64_t bytes,
                    gapless_copy_kind) {
  std::memmove(destination, source, bytes);
  return GAPLESS_OK;
}

gapless_status copy_peer(int, int, void* destination, int, const void* source, uint64_t bytes) {
  std::memmove(destination, source, bytes);
  return GAPLESS_OK;
}

const char* last_error() { return t_error.c_str(); }

const gapless_driver kDriver = {
    GAPLESS_DRIVER_ABI_VERSION,
    "cpu",
    init,
    device_count,
    device_properties,
    memory_alloc,
    memory_free,
    memory_info,
    host_alloc,
    host_free,
    stream_enter,
    stream_leave,
    copy,
    copy_peer,
    nullptr,  // its time is the time that host code takes
    nullptr,
    last_error,
};

}  // namespace

const gapless_driver* driver() { return &kDriver; }

}  // namespace gapless::cpu
