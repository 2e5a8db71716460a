// The device as at::Context and torch.accelerator see it.

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include "runtime/device.h"
#include "torch/copy.h"
#include "torch/errors.h"
#include "torch/generator.h"
#include "torch/host_allocator.h"

namespace gapless::torch_device {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {
    translated([] { driver(); });
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return initialized(); }
  bool isBuilt() const override { return true; }
  // Answered without starting anything, so that a bad setting surfaces as an error at first use
  // rather than as a device that is silently missing.
  bool isAvailable() const override { return true; }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(translated([] {
      driver();
      return device_count();
    }));
  }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    translated([&] { set_current_device(index); });
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto before = getCurrentDevice();
    setCurrentDevice(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 || index >= device_count() ? getCurrentDevice() : exchangeDevice(index);
  }

  at::Allocator* getPinnedMemoryAllocator() const override {
    return at::getHostAllocator(at::kPrivateUse1);
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<DeviceGenerator>(
        index < 0 ? static_cast<c10::DeviceIndex>(current_device()) : index);
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    auto fresh = c10::GetAllocator(c10::kPrivateUse1)->allocate(bytes);
    copy_bytes_on_device(fresh.get(), storage.data(), std::min(storage.nbytes(), bytes),
                         storage.device());
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

struct Register {
  Register() { at::RegisterPrivateUse1HooksInterface(new Hooks); }
} g_register;

}  // namespace
}  // namespace gapless::torch_device
