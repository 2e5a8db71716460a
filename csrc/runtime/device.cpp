#include "runtime/device.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "drivers/settings.h"
#include "runtime/driver_choice.h"
#include "runtime/watchdog.h"

namespace gapless {
namespace {

constexpr int64_t kLastWorkNs = 1'000'000'000;  // that a process which ends leaves to its queues

constexpr size_t kMaxStreams = 32;

std::atomic<bool> g_threads_started{false};
std::atomic<bool> g_bad_fork{false};
std::atomic<bool> g_initialized{false};
thread_local int t_device = 0;
thread_local std::vector<Stream*> t_streams;

// Never destroyed: a stream's thread may outlive static destructors.
struct Process {
  const gapless_driver* driver = nullptr;
  std::vector<std::unique_ptr<Device>> devices;
};

Process* start() {
  auto process = std::make_unique<Process>();
  process->driver = &choose_driver();
  uint64_t limit_bytes = 0;
  try {
    limit_bytes = settings::bytes("GAPLESS_MEMORY_LIMIT", 0);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
  watchdog::configure();
  for (int i = 0; i < process->driver->device_count(); ++i) {
    process->devices.push_back(std::make_unique<Device>(process->driver, i, limit_bytes));
  }
  pthread_atfork(nullptr, nullptr, [] {
    if (g_threads_started) g_bad_fork = true;
  });
  g_initialized = true;
  return process.release();
}

Process& process() {
  if (g_bad_fork.load(std::memory_order_relaxed)) {
    throw UsageError(
        "the gapless device was used before this process was forked, and its threads did not come "
        "along. Fork before the first use of the device, or start the child with the 'spawn' "
        "method "
        "(multiprocessing.set_start_method('spawn'))");
  }
  static Process* const instance = start();
  return *instance;
}

void drain(int device_index) {
  for (Stream* stream : device(device_index).streams()) stream->wait_on_host(stream->submitted());
}

}  // namespace

Device::Device(const gapless_driver* driver, int index, uint64_t limit_bytes)
    : driver_(driver), index_(index), allocator_(driver, index, limit_bytes) {
  if (driver->device_properties(index, &properties_) != GAPLESS_OK) {
    throw UsageError(driver->last_error());
  }
  allocator_.set_drain(drain);
  streams_.push_back(std::make_unique<Stream>(driver, index, 0, 0));
}

Stream& Device::stream(int index) {
  std::lock_guard lock(mutex_);
  if (index < 0 || static_cast<size_t>(index) >= streams_.size()) {
    throw UsageError("gapless:" + std::to_string(index_) + " has no stream " +
                     std::to_string(index));
  }
  return *streams_[static_cast<size_t>(index)];
}

Stream& Device::pooled_stream(int priority) {
  std::unique_lock lock(mutex_);
  if (pool_.size() + 1 < kMaxStreams) {  // the default stream counts
    lock.unlock();
    Stream& fresh = dedicated_stream(priority);
    lock.lock();
    pool_.push_back(&fresh);
    return fresh;
  }
  for (size_t tried = 0; tried < pool_.size(); ++tried) {
    Stream* next = pool_[next_pooled_++ % pool_.size()];
    if (next->priority() == priority) return *next;
  }
  return *pool_[next_pooled_++ % pool_.size()];
}

Stream& Device::dedicated_stream(int priority) {
  std::lock_guard lock(mutex_);
  const int index = static_cast<int>(streams_.size());
  streams_.push_back(std::make_unique<Stream>(driver_, index_, index, priority));
  return *streams_.back();
}

std::vector<Stream*> Device::streams() {
  std::lock_guard lock(mutex_);
  std::vector<Stream*> all;
  for (auto& stream : streams_) all.push_back(stream.get());
  return all;
}

bool Device::idle() {
  for (Stream* stream : streams()) {
    if (!stream->done(stream->submitted())) return false;
  }
  return true;
}

const gapless_driver& driver() { return *process().driver; }

Device& device(int index) {
  auto& devices = process().devices;
  if (index < 0 || static_cast<size_t>(index) >= devices.size()) {
    throw UsageError("there is no device gapless:" + std::to_string(index) + "; there are " +
                     std::to_string(devices.size()));
  }
  return *devices[static_cast<size_t>(index)];
}

int device_count() noexcept {
  try {
    return static_cast<int>(process().devices.size());
  } catch (...) {
    return 0;
  }
}

bool initialized() { return g_initialized; }
void note_thread_started() { g_threads_started = true; }
bool in_bad_fork() { return g_bad_fork; }

int current_device() { return t_device; }

void set_current_device(int index) {
  device(index);  // checks it
  t_device = index;
}

Stream& current_stream(int device_index) {
  const auto at = static_cast<size_t>(device_index);
  if (at < t_streams.size() && t_streams[at]) return *t_streams[at];
  return device(device_index).default_stream();
}

void set_current_stream(Stream& stream) {
  const auto at = static_cast<size_t>(stream.device());
  if (t_streams.size() <= at) t_streams.resize(at + 1, nullptr);
  t_streams[at] = &stream;
}

bool shutdown(int64_t timeout_ms) {
  if (!g_initialized || g_bad_fork) return true;
  // What is queued may fail yet, and would be lost without a word.
  const int64_t until_ns = now_ns() + kLastWorkNs;
  for (auto& each : process().devices) {
    while (!each->idle() && now_ns() < until_ns) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  bool ended = true;
  for (auto& each : process().devices) {
    for (Stream* stream : each->streams()) ended = stream->stop(timeout_ms) && ended;
  }
  watchdog::stop();
  return ended;
}

}  // namespace gapless
