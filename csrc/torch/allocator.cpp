#include "torch/allocator.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <cstring>
#include <unordered_map>

#include "runtime/device.h"
#include "torch/copy.h"
#include "torch/errors.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

using c10::CachingAllocator::StatType;

void fill(c10::CachingAllocator::StatArray& to, const Counters& from) {
  auto one = [&](StatType type, const Counter& counter) {
    auto& stat = to[static_cast<size_t>(type)];
    stat.current = counter.current;
    stat.peak = counter.peak;
    stat.allocated = counter.allocated;
    stat.freed = counter.freed;
  };
  one(StatType::AGGREGATE, from.all);
  one(StatType::SMALL_POOL, from.small);
  one(StatType::LARGE_POOL, from.large);
}

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int index = current_device();
    const c10::Device torch_device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index));
    if (bytes == 0) return {nullptr, nullptr, &delete_block, torch_device};
    return translated([&]() -> c10::DataPtr {
      Block* block = device(index).allocator().allocate(bytes, &current_stream(index));
      return {block->address, block, &delete_block, torch_device};
    });
  }

  // `raw_allocate` needs a pointer that is its own context, which a block is not.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    if (bytes == 0) return;
    copy_bytes_on_device(destination, source, bytes,
                         {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(current_device())});
  }

  bool initialized() override { return gapless::initialized(); }

  void emptyCache(c10::MempoolId_t) override {
    if (!gapless::initialized()) return;
    for (int i = 0; i < gapless::device_count(); ++i) {
      wait_for_device(device(i));
      device(i).allocator().empty_cache();
    }
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get_deleter() != &delete_block || !data.get_context()) return;
    auto& on = device(stream.device_index()).stream(static_cast<int>(stream.id()));
    device(stream.device_index())
        .allocator()
        .record_use(static_cast<Block*>(data.get_context()), &on);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    return translated([&] {
      const MemoryStats stats = device(index).allocator().stats();
      c10::CachingDeviceAllocator::DeviceStats out;
      fill(out.allocation, stats.allocations);
      fill(out.segment, stats.segments);
      fill(out.active, stats.active);
      fill(out.inactive_split, stats.inactive_split);
      fill(out.allocated_bytes, stats.allocated_bytes);
      fill(out.reserved_bytes, stats.reserved_bytes);
      fill(out.active_bytes, stats.active_bytes);
      fill(out.inactive_split_bytes, stats.inactive_split_bytes);
      fill(out.requested_bytes, stats.requested_bytes);
      out.num_alloc_retries = stats.retries;
      out.num_sync_all_streams = stats.drains;
      out.num_ooms = stats.out_of_memory;
      out.num_device_alloc = stats.driver_allocations;
      out.num_device_free = stats.driver_frees;
      return out;
    });
  }

  void resetAccumulatedStats(c10::DeviceIndex index) override {
    translated([&] { device(index).allocator().reset_accumulated(); });
  }

  void resetPeakStats(c10::DeviceIndex index) override {
    translated([&] { device(index).allocator().reset_peaks(); });
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    return translated(
        [&]() -> std::pair<size_t, size_t> { return device(index).allocator().info(); });
  }
};

DeviceMemory g_allocator;

REGISTER_ALLOCATOR(c10::kPrivateUse1, &g_allocator);

}  // namespace

void delete_block(void* block) {
  // In a child forked after first use the parent's tensors are destroyed too; their memory is the
  // parent's affair.
  if (!block || in_bad_fork()) return;
  auto* ours = static_cast<Block*>(block);
  device(ours->stream->device()).allocator().free(ours);
}

}  // namespace gapless::torch_device
