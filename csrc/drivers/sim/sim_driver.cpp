#include "drivers/sim/sim_driver.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "drivers/cpu/cores.h"
#include "drivers/cpu/thread_team.h"
#include "drivers/sim/fault_report.h"
#include "drivers/sim/model.h"
#include "drivers/sim/private_memory.h"
#include "drivers/sim/stream_clock.h"

namespace gapless::sim {
namespace {

thread_local std::string t_error;
thread_local StreamClock t_clock;
Model g_model;
cpu::CorePlan g_plan;
// Made at the first allocation: a process that only looks at the device maps nothing. Never
// destroyed: a stream's thread may outlive static destructors.
std::mutex g_memory_mutex;
std::vector<PrivateMemory*> g_memory;

gapless_status fail(gapless_status status, std::string text) {
  t_error = std::move(text);
  return status;
}

PrivateMemory& memory_of(int device) {
  std::lock_guard lock(g_memory_mutex);
  auto& slot = g_memory[static_cast<size_t>(device)];
  if (!slot) slot = new PrivateMemory(device, g_model.memory_bytes);
  return *slot;
}

gapless_status init() {
  try {
    g_model = Model::from_environment();
    g_plan = cpu::plan_cores();
  } catch (const std::exception& error) {
    return fail(GAPLESS_INVALID_ARGUMENT, error.what());
  }
  g_memory.assign(static_cast<size_t>(g_model.devices), nullptr);
  return GAPLESS_OK;
}

int device_count() { return g_model.devices; }

gapless_status device_properties(int device, gapless_device_properties* out) {
  if (device < 0 || device >= g_model.devices) {
    return fail(GAPLESS_INVALID_ARGUMENT, "the sim driver has no device " + std::to_string(device) +
                                              "; GAPLESS_NUM_DEVICES gives it " +
                                              std::to_string(g_model.devices));
  }
  std::memset(out, 0, sizeof(*out));
  std::strncpy(out->name, "gapless sim", sizeof(out->name) - 1);
  try {
    const PrivateMemory& memory = memory_of(device);
    out->total_memory_bytes = memory.total_bytes();
    out->kernel_offset_bytes = memory.offset_bytes();
  } catch (const std::exception& error) {
    return fail(GAPLESS_OUT_OF_MEMORY, error.what());
  }
  out->cores = static_cast<uint32_t>(g_plan.device_cores.size());
  out->memory_access = GAPLESS_MEMORY_OFFSET;
  out->computes = g_model.exact_numerics;
  return GAPLESS_OK;
}

gapless_status memory_alloc(int device, uint64_t bytes, void** out) {
  PrivateMemory& memory = memory_of(device);
  *out = memory.allocate(bytes);
  if (*out) return GAPLESS_OK;
  return fail(GAPLESS_OUT_OF_MEMORY,
              "the simulated device has " + std::to_string(memory.free_bytes() >> 20) +
                  " MiB free of " + std::to_string(memory.total_bytes() >> 20) +
                  " MiB (GAPLESS_SIM_MEMORY)");
}

gapless_status memory_free(int device, void* address, uint64_t bytes) {
  memory_of(device).free(address, bytes);
  return GAPLESS_OK;
}

gapless_status memory_info(int device, uint64_t* free_bytes, uint64_t* total_bytes) {
  PrivateMemory& memory = memory_of(device);
  *free_bytes = memory.free_bytes();
  *total_bytes = memory.total_bytes();
  return GAPLESS_OK;
}

gapless_status host_alloc(uint64_t bytes, void** out) {
  if (posix_memalign(out, 4096, bytes) != 0) {
    return fail(GAPLESS_OUT_OF_MEMORY, "the operating system refused the memory");
  }
  return GAPLESS_OK;
}

gapless_status host_free(void* address, uint64_t) {
  std::free(address);
  return GAPLESS_OK;
}

gapless_status stream_enter(int, int, int priority) {
  cpu::place_thread(g_plan.device_cores, priority);
  return GAPLESS_OK;
}

void stream_leave(int, int) {}

gapless_status outside(const char* which, int device) {
  return fail(GAPLESS_INVALID_ARGUMENT,
              std::string("the copy's ") + which +
                  " is not in the memory of gapless:" + std::to_string(device));
}

gapless_status copy(int device, int, void* destination, const void* source, uint64_t bytes,
                    gapless_copy_kind kind) {
  const PrivateMemory& memory = memory_of(device);
  if (kind != GAPLESS_HOST_TO_DEVICE) {
    if (!memory.holds(source, bytes)) return outside("source", device);
    source = memory.own(source);
  }
  if (kind != GAPLESS_DEVICE_TO_HOST) {
    if (!memory.holds(destination, bytes)) return outside("destination", device);
    destination = memory.own(destination);
  }
  std::memmove(destination, source, bytes);
  t_clock.charge(kind == GAPLESS_DEVICE_TO_DEVICE
                     ? g_model.work_ns({"copy", 0, 1, 0, 0, 2 * bytes, 0})
                     : g_model.copy_ns(bytes));
  return GAPLESS_OK;
}

gapless_status copy_peer(int device, int, void* destination, int source_device, const void* source,
                         uint64_t bytes) {
  const PrivateMemory& from = memory_of(source_device);
  const PrivateMemory& to = memory_of(device);
  if (!from.holds(source, bytes)) return outside("source", source_device);
  if (!to.holds(destination, bytes)) return outside("destination", device);
  std::memcpy(to.own(destination), from.own(source), bytes);
  t_clock.charge(g_model.peer_copy_ns(bytes));
  return GAPLESS_OK;
}

void work_begin(int, int, const gapless_work* work) {
  set_executing(work->name);
  constexpr int32_t kEvent = 5;  // costs nothing and takes no launch
  const double launch_us = work->kind == kEvent ? 0 : g_model.launch_us;
  t_clock.begin(*work, static_cast<int64_t>(launch_us * 1e3), g_model.work_ns(*work),
                g_model.exact_numerics);
}

void work_end(int, int, gapless_work_times* out) {
  *out = t_clock.end();
  set_executing(nullptr);
}

const char* last_error() { return t_error.c_str(); }

const gapless_driver kDriver = {
    GAPLESS_DRIVER_ABI_VERSION,
    "sim",
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
    work_begin,
    work_end,
    last_error,
};

}  // namespace

const gapless_driver* driver() { return &kDriver; }

}  // namespace gapless::sim
