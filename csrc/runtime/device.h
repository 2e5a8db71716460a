// The process's devices: driver, streams and allocators, made on first use.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "drivers/driver.h"
#include "runtime/allocator.h"
#include "runtime/stream.h"

namespace gapless {

class Device {
 public:
  Device(const gapless_driver* driver, int index, uint64_t limit_bytes);

  int index() const { return index_; }
  const gapless_device_properties& properties() const { return properties_; }
  bool memory_is_private() const { return properties_.memory_access == GAPLESS_MEMORY_PRIVATE; }
  bool memory_is_shared() const { return properties_.memory_access == GAPLESS_MEMORY_SHARED; }
  Allocator& allocator() { return allocator_; }

  Stream& default_stream() { return stream(0); }
  Stream& stream(int index);
  // A stream that shares its thread with nothing, up to a limit; then the pool is gone round again.
  // There, it prefers one of the same priority. Lower numbers are more urgent.
  Stream& pooled_stream(int priority);
  // A stream that shares its thread with nothing whatever the number: its work may have to wait for
  // another process.
  Stream& dedicated_stream(int priority);
  std::vector<Stream*> streams();
  // Whether all work submitted to any of its streams is done.
  bool idle();

 private:
  const gapless_driver* const driver_;
  const int index_;
  gapless_device_properties properties_{};
  Allocator allocator_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Stream*> pool_;
  size_t next_pooled_ = 0;
};

// The driver of this process and its devices. Throws UsageError where the driver refuses to start
// (with its text), or in a child that was forked after a stream's thread had started.
const gapless_driver& driver();
Device& device(int index);
// 0 where the driver cannot be used; never throws.
int device_count() noexcept;
// Whether `driver()` succeeded before.
bool initialized();

// Stream threads do not survive fork: from then on a child gets a clear error.
void note_thread_started();
bool in_bad_fork();

// The calling thread's current device and, per device, current stream.
int current_device();
void set_current_device(int index);
Stream& current_stream(int device_index);
void set_current_stream(Stream& stream);

// Ends all streams' threads, once their queues are empty or a second has passed, after the work
// that they are in. False where one did not end in time.
bool shutdown(int64_t timeout_ms);

}  // namespace gapless
