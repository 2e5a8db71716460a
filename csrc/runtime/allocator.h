// The caching allocator of one device: segments from the driver, split into blocks.
//
// A block belongs to the stream that it was allocated for. When it is freed it may at once be
// handed out for that stream again, although queued work still uses it: the new work comes later in
// the same order. For other streams that used it (`record_use`) the block waits until they have
// passed the place that they were at when it was freed.
//
// Small blocks are not merged with their neighbours as they are freed: the next one of the same
// size takes them as they are. They are merged before the allocator asks the driver for more.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "drivers/driver.h"
#include "runtime/stream.h"

namespace gapless {

struct Pool;

struct Block {
  void* address = nullptr;
  uint64_t bytes = 0;
  uint64_t requested_bytes = 0;
  Stream* stream = nullptr;
  Pool* pool = nullptr;
  Block* previous = nullptr;  // neighbours in the same segment
  Block* next = nullptr;
  bool allocated = false;
  bool small = false;            // whether its segment is one of small blocks
  bool zeros = false;            // as the driver gave it, filled with zeros; not after a first use
  std::vector<Stream*> used_by;  // other streams than its own
};

struct BySize {
  bool operator()(const Block* a, const Block* b) const {
    if (a->stream != b->stream) return std::less<>{}(a->stream, b->stream);
    if (a->bytes != b->bytes) return a->bytes < b->bytes;
    return std::less<>{}(a->address, b->address);
  }
};

struct Pool {
  uint64_t id = 0;
  int users = 0;       // graphs
  int64_t blocks = 0;  // in tensors, or freed while another stream may still use them
  std::set<Block*, BySize> free_blocks;
  // Free small blocks by their stream's index and their size in grains, not merged.
  static constexpr size_t kReadySizes = 64;
  using Ready = std::array<std::vector<Block*>, kReadySizes + 1>;
  std::vector<Ready> ready;
};

struct Counter {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void add(int64_t amount);
  void remove(int64_t amount);
};

// A count in all, and of small and of large segments' blocks.
struct Counters {
  Counter all, small, large;
  void add(const Block& block, int64_t amount);
  void remove(const Block& block, int64_t amount);
};

struct MemoryStats {
  // `active`: in tensors, or freed while another stream may still use it. `inactive_split`: free
  // parts of segments of which other parts are in use, which cannot go back to the driver.
  Counters allocations, segments, active, inactive_split;
  Counters allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  int64_t retries = 0, out_of_memory = 0, drains = 0, driver_allocations = 0, driver_frees = 0;

  template <typename F>
  void for_each(F f) {
    for (Counters* counters :
         {&allocations, &segments, &active, &inactive_split, &allocated_bytes, &reserved_bytes,
          &active_bytes, &inactive_split_bytes, &requested_bytes}) {
      f(counters->all);
      f(counters->small);
      f(counters->large);
    }
  }
};

class Allocator {
 public:
  Allocator(const gapless_driver* driver, int device, uint64_t limit_bytes);

  // A block of at least `bytes` for work on `stream`, from the pool of the graph that the stream is
  // capturing, if any. Throws OutOfMemory with wanted, free, reserved and the limit.
  Block* allocate(uint64_t bytes, Stream* stream);
  void free(Block* block);
  void record_use(Block* block, Stream* stream);

  // Returns segments that are wholly free to the driver. The caller has synchronised the device.
  void empty_cache();

  // Graphs' memory pools: blocks of a pool are handed out only during captures that use it. What is
  // free in a pool that no graph uses any more serves everybody.
  uint64_t new_pool();
  void retain_pool(uint64_t id);
  void release_pool(uint64_t id);

  MemoryStats stats();
  void reset_peaks();
  void reset_accumulated();
  // Free and total bytes as a user sees them: the limit where it is lower than the machine.
  std::pair<uint64_t, uint64_t> info();

  // Set by the device: waits for all streams, so that deferred frees can be taken back.
  void set_drain(void (*drain)(int device)) { drain_ = drain; }

 private:
  Pool* pool_for(Stream* stream);
  Block* take_cached(Pool& pool, Stream* stream, uint64_t bytes);
  Block* take_segment(Pool& pool, Stream* stream, uint64_t bytes);
  Block* take_ready(Pool& pool, Stream* stream, uint64_t bytes);
  Block* take_free(Pool& pool, Stream* stream, uint64_t bytes);
  // The ready blocks become free blocks, merged with their neighbours. False where there were none.
  bool merge_ready(Pool& pool);
  void merge(Block* block);
  void count_split(Block* block, bool is_free);
  Block* split(Block* block, uint64_t bytes);
  void give_back(Block* block);
  void insert_free(Block* block);
  bool erase_free(Block* block);
  void take_deferred();
  void release_free_segments(Pool& pool);
  void release_unused_segments();
  void forget_if_unused(Pool& pool);
  uint64_t limit_left(uint64_t driver_free_bytes) const;
  [[noreturn]] void refuse(uint64_t bytes);

  const gapless_driver* const driver_;
  const int device_;
  const uint64_t limit_bytes_;  // 0: the machine's memory
  uint64_t zeroed_from_bytes_ = 0;
  void (*drain_)(int device) = nullptr;

  std::mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Pool>> pools_;
  uint64_t next_pool_ = 1;
  struct Deferred {
    Block* block;
    std::vector<std::pair<Stream*, uint64_t>> until;
  };
  std::deque<Deferred> deferred_;
  MemoryStats stats_;
};

}  // namespace gapless
