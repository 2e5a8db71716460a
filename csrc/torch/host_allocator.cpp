#include "torch/host_allocator.h"

#include <ATen/core/CachingHostAllocator.h>

#include <map>
#include <shared_mutex>

#include "runtime/device.h"
#include "torch/errors.h"

namespace gapless::torch_device {
namespace {

// What CachingHostAllocatorImpl calls a stream: comparable, hashable, made from a c10::Stream.
struct HostStream {
  explicit HostStream(c10::Stream stream)
      : ours(&device(stream.device_index()).stream(static_cast<int>(stream.id()))) {}
  explicit HostStream(Stream* stream) : ours(stream) {}
  bool operator==(const HostStream& other) const { return ours == other.ours; }
  // The base class asks the stream of a private pool, which this allocator does not offer.
  operator c10::Stream() const {
    return c10::Stream(
        c10::Stream::UNSAFE,
        c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(ours->device())),
        static_cast<c10::StreamId>(ours->index()));
  }
  Stream* ours;
};

struct HostMark {
  Stream* stream;
  uint64_t place;
};

}  // namespace
}  // namespace gapless::torch_device

namespace std {
template <>
struct hash<gapless::torch_device::HostStream> {
  size_t operator()(const gapless::torch_device::HostStream& stream) const {
    return hash<void*>{}(stream.ours);
  }
};
}  // namespace std

namespace gapless::torch_device {
namespace {

using HostBlock = at::HostBlock<HostStream>;

// Segments of pinned memory by address, for `is_pinned`.
std::shared_mutex g_segments_mutex;
std::map<uintptr_t, size_t> g_segments;

struct HostMemoryImpl final : at::CachingHostAllocatorImpl<HostStream, HostMark, HostBlock> {
 private:
  void allocate_host_memory(size_t bytes, void** address) override {
    translated([&] {
      if (driver().host_alloc(bytes, address) != GAPLESS_OK) {
        throw OutOfMemory("pinned host memory: wanted " + std::to_string(bytes) + " bytes; " +
                          driver().last_error());
      }
    });
    std::unique_lock lock(g_segments_mutex);
    g_segments[reinterpret_cast<uintptr_t>(*address)] = bytes;
  }

  void free_block(HostBlock* block) override {
    if (in_bad_fork()) return;
    {
      std::unique_lock lock(g_segments_mutex);
      g_segments.erase(reinterpret_cast<uintptr_t>(block->ptr_));
    }
    driver().host_free(block->ptr_, block->size_);
  }

  void record_stream(std::optional<std::vector<HostMark>>& marks, HostStream stream) override {
    marks->push_back({stream.ours, stream.ours->submitted()});
  }

  bool query_event(HostMark& mark) override { return mark.stream->done(mark.place); }

  HostStream get_current_stream() const override {
    return HostStream(&current_stream(current_device()));
  }

  bool stream_is_capturing(HostStream stream) const override {
    return stream.ours->capturing() != nullptr;
  }
};

void delete_pinned(void* context);

struct HostMemory final : at::CachingHostAllocatorInterface<HostMemoryImpl, &delete_pinned> {};

// Never destroyed: tensors may be freed after static destructors have run.
HostMemory& host_memory() {
  static auto* const instance = new HostMemory;
  return *instance;
}

void delete_pinned(void* context) {
  if (!in_bad_fork()) host_memory().free(context);
}

at::HostAllocatorRegistry<at::kPrivateUse1> g_register(&host_memory());

}  // namespace

bool is_pinned(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  std::shared_lock lock(g_segments_mutex);
  auto next = g_segments.upper_bound(at);
  if (next == g_segments.begin()) return false;
  --next;
  return at < next->first + next->second;
}

void record_pinned_use(const at::Tensor& pinned, Stream& stream) {
  const auto& data = pinned.storage().data_ptr();
  host_memory().record_event(
      data.get(), data.get_context(),
      c10::Stream(c10::Stream::UNSAFE,
                  c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(stream.device())),
                  static_cast<c10::StreamId>(stream.index())));
}

}  // namespace gapless::torch_device
