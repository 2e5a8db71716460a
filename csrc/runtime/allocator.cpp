#include "runtime/allocator.h"

#include <algorithm>
#include <string>

#include "runtime/graph.h"

namespace gapless {

namespace {

constexpr uint64_t kGrainBytes = 512;
// Small blocks share segments of 2 MiB; from 1 MiB on a block takes a segment of its own, rounded
// up, and what is left of it serves others.
constexpr uint64_t kSmallSegmentBytes = 2u << 20;
constexpr uint64_t kSmallLimitBytes = 1u << 20;

uint64_t round_up(uint64_t bytes, uint64_t grain) { return (bytes + grain - 1) / grain * grain; }

std::string mib(uint64_t bytes) {
  const uint64_t hundredths = bytes * 100 / (1u << 20);
  std::string rest = std::to_string(hundredths % 100);
  if (rest.size() == 1) rest = "0" + rest;
  return std::to_string(hundredths / 100) + "." + rest + " MiB";
}

}  // namespace

void Counter::add(int64_t amount) {
  current += amount;
  allocated += amount;
  peak = std::max(peak, current);
}

void Counter::remove(int64_t amount) {
  current -= amount;
  freed += amount;
}

void Counters::add(const Block& block, int64_t amount) {
  all.add(amount);
  (block.small ? small : large).add(amount);
}

void Counters::remove(const Block& block, int64_t amount) {
  all.remove(amount);
  (block.small ? small : large).remove(amount);
}

Allocator::Allocator(const gapless_driver* driver, int device, uint64_t limit_bytes)
    : driver_(driver), device_(device), limit_bytes_(limit_bytes) {
  pools_[0] = std::make_unique<Pool>();
  gapless_device_properties properties{};
  if (driver->device_properties(device, &properties) == GAPLESS_OK) {
    zeroed_from_bytes_ = properties.zeroed_from_bytes;
  }
}

Pool* Allocator::pool_for(Stream* stream) {
  uint64_t id = 0;
  if (const GraphBody* body = stream->capturing()) id = body->pool;
  auto found = pools_.find(id);
  return found == pools_.end() ? pools_[0].get() : found->second.get();
}

Block* Allocator::allocate(uint64_t bytes, Stream* stream) {
  const uint64_t rounded = round_up(std::max<uint64_t>(bytes, 1), kGrainBytes);
  std::unique_lock lock(mutex_);
  take_deferred();
  Pool& pool = *pool_for(stream);
  Block* block = take_cached(pool, stream, rounded);
  if (!block) block = take_segment(pool, stream, rounded);
  if (!block) {
    // Once more, after everything queued has ended and the cache has gone back to the driver.
    ++stats_.retries;
    ++stats_.drains;
    lock.unlock();
    if (drain_) drain_(device_);
    lock.lock();
    take_deferred();
    block = take_cached(pool, stream, rounded);
    if (!block) {
      release_unused_segments();
      block = take_segment(pool, stream, rounded);
    }
  }
  if (!block) refuse(rounded);
  block->allocated = true;
  ++block->pool->blocks;
  block->requested_bytes = bytes;
  stats_.allocations.add(*block, 1);
  stats_.active.add(*block, 1);
  stats_.allocated_bytes.add(*block, static_cast<int64_t>(block->bytes));
  stats_.active_bytes.add(*block, static_cast<int64_t>(block->bytes));
  stats_.requested_bytes.add(*block, static_cast<int64_t>(bytes));
  return block;
}

Block* Allocator::take_cached(Pool& pool, Stream* stream, uint64_t bytes) {
  if (Block* block = take_ready(pool, stream, bytes)) return block;
  if (Block* block = take_free(pool, stream, bytes)) return block;
  return merge_ready(pool) ? take_free(pool, stream, bytes) : nullptr;
}

Block* Allocator::take_ready(Pool& pool, Stream* stream, uint64_t bytes) {
  const size_t size = bytes / kGrainBytes, at = static_cast<size_t>(stream->index());
  if (size > Pool::kReadySizes || at >= pool.ready.size() || pool.ready[at][size].empty()) {
    return nullptr;
  }
  Block* block = pool.ready[at][size].back();
  pool.ready[at][size].pop_back();
  count_split(block, /*is_free=*/false);
  return block;
}

bool Allocator::merge_ready(Pool& pool) {
  std::vector<Block*> blocks;
  for (auto& sizes : pool.ready) {
    for (auto& same : sizes) {
      blocks.insert(blocks.end(), same.begin(), same.end());
      same.clear();
    }
  }
  for (Block* block : blocks) {
    count_split(block, /*is_free=*/false);
    merge(block);
  }
  return !blocks.empty();
}

Block* Allocator::take_free(Pool& pool, Stream* stream, uint64_t bytes) {
  Block key;
  key.stream = stream;
  key.bytes = bytes;
  auto found = pool.free_blocks.lower_bound(&key);
  if (found == pool.free_blocks.end() || (*found)->stream != stream) return nullptr;
  // A large block is not spent on a small tensor that may outlive it by far.
  if (bytes < kSmallLimitBytes && (*found)->bytes > kSmallSegmentBytes) return nullptr;
  Block* block = *found;
  erase_free(block);
  return split(block, bytes);
}

Block* Allocator::split(Block* block, uint64_t bytes) {
  if (block->bytes - bytes < kGrainBytes) return block;
  auto* rest = new Block;
  rest->address = static_cast<char*>(block->address) + bytes;
  rest->bytes = block->bytes - bytes;
  rest->stream = block->stream;
  rest->pool = block->pool;
  rest->small = block->small;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next) rest->next->previous = rest;
  block->next = rest;
  block->bytes = bytes;
  insert_free(rest);
  return block;
}

uint64_t Allocator::limit_left(uint64_t driver_free_bytes) const {
  if (!limit_bytes_) return driver_free_bytes;
  const auto reserved = static_cast<uint64_t>(stats_.reserved_bytes.all.current);
  return std::min(driver_free_bytes, limit_bytes_ > reserved ? limit_bytes_ - reserved : 0);
}

Block* Allocator::take_segment(Pool& pool, Stream* stream, uint64_t bytes) {
  const uint64_t size =
      bytes < kSmallLimitBytes ? kSmallSegmentBytes : round_up(bytes, kSmallSegmentBytes);
  if (pool.id != 0) {
    // What graphs that are gone have left, where no stream may still be using it: a replay need not
    // be on the stream whose order the block follows.
    merge_ready(*pools_[0]);
    for (Block* unused : pools_[0]->free_blocks) {
      if (unused->previous || unused->next || unused->small != (bytes < kSmallLimitBytes)) continue;
      if (unused->bytes < size || unused->bytes > size + size / 4) continue;
      if (!unused->stream->done(unused->stream->submitted())) continue;
      erase_free(unused);
      unused->pool = &pool;
      unused->stream = stream;
      return split(unused, bytes);
    }
  }
  if (limit_bytes_ && size > limit_left(UINT64_MAX)) return nullptr;
  void* address = nullptr;
  if (driver_->memory_alloc(device_, size, &address) != GAPLESS_OK) return nullptr;
  ++stats_.driver_allocations;
  auto* block = new Block;
  block->address = address;
  block->bytes = size;
  block->stream = stream;
  block->pool = &pool;
  block->small = bytes < kSmallLimitBytes;
  block->zeros = zeroed_from_bytes_ && size >= zeroed_from_bytes_;
  stats_.segments.add(*block, 1);
  stats_.reserved_bytes.add(*block, static_cast<int64_t>(size));
  return split(block, bytes);
}

void Allocator::refuse(uint64_t bytes) {
  ++stats_.out_of_memory;
  uint64_t free_bytes = 0, total_bytes = 0;
  driver_->memory_info(device_, &free_bytes, &total_bytes);
  const auto reserved = static_cast<uint64_t>(stats_.reserved_bytes.all.current);
  const auto allocated = static_cast<uint64_t>(stats_.allocated_bytes.all.current);
  throw OutOfMemory("gapless:" + std::to_string(device_) + " is out of memory: wanted " +
                    mib(bytes) + ", free " + mib(limit_left(free_bytes)) + ", reserved " +
                    mib(reserved) + " (" + mib(allocated) + " of it in tensors), limit " +
                    mib(limit_bytes_ ? limit_bytes_ : total_bytes) +
                    (limit_bytes_ ? " (GAPLESS_MEMORY_LIMIT)" : " (the machine)") +
                    ". Use a smaller model, batch or context, free tensors" +
                    (limit_bytes_ ? ", or raise the limit." : "."));
}

void Allocator::record_use(Block* block, Stream* stream) {
  std::lock_guard lock(mutex_);
  if (block->stream == stream) return;
  auto& used = block->used_by;
  if (std::find(used.begin(), used.end(), stream) == used.end()) used.push_back(stream);
}

void Allocator::free(Block* block) {
  std::lock_guard lock(mutex_);
  block->allocated = block->zeros = false;
  stats_.allocations.remove(*block, 1);
  stats_.allocated_bytes.remove(*block, static_cast<int64_t>(block->bytes));
  stats_.requested_bytes.remove(*block, static_cast<int64_t>(block->requested_bytes));
  if (!block->used_by.empty()) {
    Deferred deferred{block, {}};
    for (Stream* stream : block->used_by) {
      deferred.until.emplace_back(stream, stream->submitted());
    }
    block->used_by.clear();
    deferred_.push_back(std::move(deferred));
    return;
  }
  give_back(block);
}

void Allocator::take_deferred() {
  std::erase_if(deferred_, [this](const Deferred& deferred) {
    for (const auto& [stream, place] : deferred.until) {
      if (!stream->done(place)) return false;
    }
    give_back(deferred.block);
    return true;
  });
}

void Allocator::give_back(Block* block) {
  stats_.active.remove(*block, 1);
  stats_.active_bytes.remove(*block, static_cast<int64_t>(block->bytes));
  Pool& pool = *block->pool;
  --pool.blocks;
  if (pool.id != 0 && pool.users == 0) {
    block->pool = pools_[0].get();
    forget_if_unused(pool);
  }
  const size_t size = block->bytes / kGrainBytes;
  if (size > Pool::kReadySizes) {
    merge(block);
    return;
  }
  auto& ready = block->pool->ready;
  const auto at = static_cast<size_t>(block->stream->index());
  if (at >= ready.size()) ready.resize(at + 1);
  ready[at][size].push_back(block);
  count_split(block, /*is_free=*/true);
}

void Allocator::merge(Block* block) {
  // Not across pools: what a graph's replays write to must not be handed to everybody.
  auto mergeable = [&](Block* other) {
    return other && !other->allocated && other->pool == block->pool && erase_free(other);
  };
  if (mergeable(block->previous)) {
    Block* previous = block->previous;
    previous->bytes += block->bytes;
    previous->next = block->next;
    if (block->next) block->next->previous = previous;
    delete block;
    block = previous;
  }
  if (mergeable(block->next)) {
    Block* next = block->next;
    block->bytes += next->bytes;
    block->next = next->next;
    if (block->next) block->next->previous = block;
    delete next;
  }
  insert_free(block);
}

void Allocator::insert_free(Block* block) {
  block->pool->free_blocks.insert(block);
  count_split(block, /*is_free=*/true);
}

void Allocator::count_split(Block* block, bool is_free) {
  if (!block->previous && !block->next) return;
  const auto bytes = static_cast<int64_t>(block->bytes);
  if (is_free) {
    stats_.inactive_split.add(*block, 1);
    stats_.inactive_split_bytes.add(*block, bytes);
  } else {
    stats_.inactive_split.remove(*block, 1);
    stats_.inactive_split_bytes.remove(*block, bytes);
  }
}

bool Allocator::erase_free(Block* block) {
  if (block->pool->free_blocks.erase(block) == 0) return false;
  count_split(block, /*is_free=*/false);
  return true;
}

void Allocator::release_free_segments(Pool& pool) {
  merge_ready(pool);
  for (auto at = pool.free_blocks.begin(); at != pool.free_blocks.end();) {
    Block* block = *at;
    // The whole segment is free, and the stream that may still be using it is past it.
    if (block->previous || block->next || !block->stream->done(block->stream->submitted())) {
      ++at;
      continue;
    }
    at = pool.free_blocks.erase(at);
    driver_->memory_free(device_, block->address, block->bytes);
    ++stats_.driver_frees;
    stats_.segments.remove(*block, 1);
    stats_.reserved_bytes.remove(*block, static_cast<int64_t>(block->bytes));
    delete block;
  }
}

void Allocator::empty_cache() {
  std::lock_guard lock(mutex_);
  take_deferred();
  release_unused_segments();
}

void Allocator::release_unused_segments() {
  // A pool that a graph still uses keeps its memory: a replay writes to blocks that are free here.
  for (auto& entry : pools_) {
    if (entry.second->users == 0) release_free_segments(*entry.second);
  }
}

uint64_t Allocator::new_pool() {
  std::lock_guard lock(mutex_);
  const uint64_t id = next_pool_++;
  pools_[id] = std::make_unique<Pool>();
  pools_[id]->id = id;
  return id;
}

void Allocator::retain_pool(uint64_t id) {
  std::lock_guard lock(mutex_);
  if (id == 0 || id >= next_pool_) {
    throw UsageError("memory pool " + std::to_string(id) + " does not exist on this device");
  }
  auto& pool = pools_[id];  // one that was forgotten begins anew
  if (!pool) {
    pool = std::make_unique<Pool>();
    pool->id = id;
  }
  ++pool->users;
}

void Allocator::release_pool(uint64_t id) {
  std::lock_guard lock(mutex_);
  auto found = pools_.find(id);
  if (found == pools_.end()) return;
  Pool& pool = *found->second;
  if (--pool.users > 0) return;
  release_free_segments(pool);
  for (Block* block : std::vector<Block*>(pool.free_blocks.begin(), pool.free_blocks.end())) {
    erase_free(block);
    block->pool = pools_[0].get();
    merge(block);
  }
  forget_if_unused(pool);
}

void Allocator::forget_if_unused(Pool& pool) {
  // Tensors that outlive their graphs keep the pool as long as they live.
  if (pool.id != 0 && pool.users == 0 && pool.blocks == 0) pools_.erase(pool.id);
}

MemoryStats Allocator::stats() {
  std::lock_guard lock(mutex_);
  take_deferred();
  return stats_;
}

void Allocator::reset_peaks() {
  std::lock_guard lock(mutex_);
  stats_.for_each([](Counter& counter) { counter.peak = counter.current; });
}

void Allocator::reset_accumulated() {
  std::lock_guard lock(mutex_);
  stats_.for_each([](Counter& counter) { counter.allocated = counter.freed = 0; });
  stats_.retries = stats_.out_of_memory = stats_.drains = 0;
  stats_.driver_allocations = stats_.driver_frees = 0;
}

std::pair<uint64_t, uint64_t> Allocator::info() {
  std::lock_guard lock(mutex_);
  uint64_t free_bytes = 0, total_bytes = 0;
  driver_->memory_info(device_, &free_bytes, &total_bytes);
  if (limit_bytes_) total_bytes = std::min(total_bytes, limit_bytes_);
  const auto cached =
      static_cast<uint64_t>(stats_.reserved_bytes.all.current - stats_.active_bytes.all.current);
  return {std::min(total_bytes, limit_left(free_bytes) + cached), total_bytes};
}

}  // namespace gapless
