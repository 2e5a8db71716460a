// Devices, streams and events, as PyTorch's DeviceGuardImplInterface.

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "runtime/device.h"
#include "runtime/event.h"
#include "torch/errors.h"
#include "torch/submit_site.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

Stream& ours(const c10::Stream& stream) {
  return device(stream.device_index()).stream(static_cast<int>(stream.id()));
}

c10::Stream theirs(const Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE,
                     c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(stream.device())),
                     static_cast<c10::StreamId>(stream.index()));
}

int index_of(c10::Device device) { return device.has_index() ? device.index() : current_device(); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }

  c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device from = getDevice();
    if (to.has_index() && to.index() != from.index()) setDevice(to);
    return from;
  }
  c10::Device getDevice() const override {
    return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(current_device())};
  }
  void setDevice(c10::Device to) const override {
    translated([&] { set_current_device(index_of(to)); });
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    try {
      set_current_device(index_of(to));
    } catch (...) {  // the contract: called from destructors
    }
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(gapless::device_count());
  }

  // Those that the CPU's kernels know, if not each of them every one.
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability known;
    known.capability_data.capability_bits = 0;
    for (const auto index : {c10::kIndex_Bool,
                             c10::kIndex_Byte,
                             c10::kIndex_Char,
                             c10::kIndex_Short,
                             c10::kIndex_Int,
                             c10::kIndex_Long,
                             c10::kIndex_UInt16,
                             c10::kIndex_UInt32,
                             c10::kIndex_UInt64,
                             c10::kIndex_Half,
                             c10::kIndex_BFloat16,
                             c10::kIndex_Float,
                             c10::kIndex_Double,
                             c10::kIndex_ComplexHalf,
                             c10::kIndex_ComplexFloat,
                             c10::kIndex_ComplexDouble,
                             c10::kIndex_Float8_e5m2,
                             c10::kIndex_Float8_e4m3fn,
                             c10::kIndex_Float8_e5m2fnuz,
                             c10::kIndex_Float8_e4m3fnuz}) {
      known.capability_data.capability_bits |= uint64_t{1} << index;
    }
    return known;
  }

  c10::Stream getStream(c10::Device on) const override {
    return translated([&] { return theirs(current_stream(index_of(on))); });
  }
  c10::Stream getDefaultStream(c10::Device on) const override {
    return translated([&] { return theirs(device(index_of(on)).default_stream()); });
  }
  c10::Stream getStreamFromGlobalPool(c10::Device on, bool high_priority) const override {
    return getNewStream(on, high_priority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device on, int priority) const override {
    return translated([&] { return theirs(device(index_of(on)).pooled_stream(priority)); });
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return translated([&] {
      const c10::Stream from = theirs(current_stream(to.device_index()));
      set_current_stream(ours(to));
      return from;
    });
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return translated([&] { return static_cast<void*>(&ours(stream)); });
  }
  bool queryStream(const c10::Stream& stream) const override {
    return translated([&] {
      Stream& on = ours(stream);
      return on.done(on.submitted());
    });
  }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(ours(stream)); }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    if (!initialized()) return;
    synchronize(translated([&]() -> Device& { return device(index); }));
  }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    return translated([&] { return ours(stream).capturing() != nullptr; });
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    c10::getDeviceAllocator(c10::kPrivateUse1)->recordStream(data, stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    translated([&] {
      if (!*event) *event = new Event(flag == c10::EventFlag::BACKEND_DEFAULT);
      static_cast<Event*>(*event)->record(ours(stream));
    });
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (!event) return;
    translated(
        [&] { submit_wait(ours(stream), static_cast<Event*>(event)->mark(), submit_site()); });
  }
  bool queryEvent(void* event) const override {
    return !event || query(static_cast<Event*>(event)->mark());
  }
  void synchronizeEvent(void* event) const override {
    if (event) synchronize(static_cast<Event*>(event)->mark());
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start && end, "elapsed_time needs both events recorded");
    return translated([&] {
      return elapsed_ms(static_cast<Event*>(start)->mark(), static_cast<Event*>(end)->mark());
    });
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace
}  // namespace gapless::torch_device
