#include "drivers/cpu/cpu_driver.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "drivers/cpu/cores.h"

namespace gapless::cpu {
namespace {

constexpr uint64_t kHugePageBytes = 2u << 20;

thread_local std::string t_error;
CorePlan g_plan;
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

gapless_status init() {
  try {
    g_plan = plan_cores();
  } catch (const std::exception& error) {
    return fail(GAPLESS_INVALID_ARGUMENT, error.what());
  }
  if (const char* nice = std::getenv("GAPLESS_DEVICE_NICE"); nice && *nice) {
    char* end = nullptr;
    const long value = std::strtol(nice, &end, 10);
    if (*end || value < -20 || value > 19) {
      return fail(GAPLESS_INVALID_ARGUMENT, std::string("GAPLESS_DEVICE_NICE=") + nice +
                                                ": give a whole number from -20 to 19");
    }
    g_nice = static_cast<int>(value);
  }
  return GAPLESS_OK;
}

int device_count() { return 1; }

gapless_status device_properties(int device, gapless_device_properties* out) {
  if (device != 0) return fail(GAPLESS_INVALID_ARGUMENT, "the cpu driver has one device, 0");
  std::memset(out, 0, sizeof(*out));
  std::strncpy(out->name, "gapless cpu", sizeof(out->name) - 1);
  uint64_t free_bytes = 0;
  memory_info(device, &free_bytes, &out->total_memory_bytes);
  out->cores = static_cast<uint32_t>(g_plan.device_cores.size());
  out->memory_is_host_addressable = 1;
  return GAPLESS_OK;
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
  const uint64_t alignment = bytes >= kHugePageBytes ? kHugePageBytes : 64;
  if (posix_memalign(&address, alignment, bytes) != 0) {
    return fail(GAPLESS_OUT_OF_MEMORY, "the operating system refused the memory");
  }
  if (bytes >= kHugePageBytes) madvise(address, bytes, MADV_HUGEPAGE);
  *out = address;
  return GAPLESS_OK;
}

gapless_status memory_alloc(int, uint64_t bytes, void** out) { return map_memory(bytes, out); }

gapless_status memory_free(int, void* address, uint64_t) {
  std::free(address);
  return GAPLESS_OK;
}

gapless_status host_alloc(uint64_t bytes, void** out) { return map_memory(bytes, out); }

gapless_status host_free(void* address, uint64_t) {
  std::free(address);
  return GAPLESS_OK;
}

// The thread team belongs to PyTorch's own OpenMP and MKL: linking another copy would set the
// thread count of a runtime that no kernel uses, so they are looked up where torch loaded them.
void set_team_size(int threads) {
  if (auto set = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) {
    set(threads);
  }
  if (auto set = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"))) {
    set(threads);
  }
}

gapless_status stream_enter(int, int) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : g_plan.device_cores) CPU_SET(core, &set);
  // Best effort: a container may forbid it, and the device works without. The team inherits it.
  sched_setaffinity(0, sizeof(set), &set);
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), g_nice);
  set_team_size(static_cast<int>(g_plan.device_cores.size()));
  return GAPLESS_OK;
}

void stream_leave(int, int) {}

gapless_status copy(int, int, void* destination, const void* source, uint64_t bytes,
                    gapless_copy_kind) {
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
    last_error,
};

}  // namespace

const gapless_driver* driver() { return &kDriver; }

}  // namespace gapless::cpu
