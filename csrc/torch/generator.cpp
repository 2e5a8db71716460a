#include "torch/generator.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <deque>

#include "runtime/device.h"

namespace gapless::torch_device {
namespace {

constexpr int64_t kStateBytes = 2 * sizeof(uint64_t);

// SplitMix64's finaliser (Steele, Lea, Flood 2014): neighbouring offsets give unrelated seeds.
uint64_t mix(uint64_t seed, uint64_t offset) {
  uint64_t z = seed + (offset + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace

DeviceGenerator::DeviceGenerator(c10::DeviceIndex index, uint64_t seed)
    : c10::GeneratorImpl(c10::Device(c10::kPrivateUse1, index),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      seed_(seed) {}

void DeviceGenerator::set_current_seed(uint64_t seed) {
  std::lock_guard lock(state_mutex_);
  seed_ = seed;
  offset_ = 0;
}

void DeviceGenerator::set_offset(uint64_t offset) {
  std::lock_guard lock(state_mutex_);
  offset_ = offset;
}

uint64_t DeviceGenerator::get_offset() const {
  std::lock_guard lock(state_mutex_);
  return offset_;
}

uint64_t DeviceGenerator::current_seed() const {
  std::lock_guard lock(state_mutex_);
  return seed_;
}

uint64_t DeviceGenerator::seed() {
  const uint64_t seed = c10::detail::getNonDeterministicRandom(false);
  set_current_seed(seed);
  return seed;
}

void DeviceGenerator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == kStateBytes, "a gapless generator's state has ", kStateBytes,
              " bytes (seed and offset), this one has ", state.numel());
  uint64_t words[2];
  std::memcpy(words, state.data(), kStateBytes);
  std::lock_guard lock(state_mutex_);
  seed_ = words[0];
  offset_ = words[1];
}

c10::intrusive_ptr<c10::TensorImpl> DeviceGenerator::get_state() const {
  auto state = at::empty({kStateBytes}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  std::lock_guard lock(state_mutex_);
  const uint64_t words[2] = {seed_, offset_};
  std::memcpy(state.mutable_data_ptr(), words, kStateBytes);
  return state.getIntrusivePtr();
}

RandomTicket DeviceGenerator::take(uint64_t count) {
  std::lock_guard lock(state_mutex_);
  const RandomTicket ticket{seed_, offset_};
  offset_ += count;
  return ticket;
}

DeviceGenerator* DeviceGenerator::clone_impl() const {
  std::lock_guard lock(state_mutex_);
  auto* copy = new DeviceGenerator(device().index(), seed_);
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* const generators = [] {
    auto* all = new std::deque<at::Generator>;
    for (int i = 0; i < std::max(1, device_count()); ++i) {
      all->push_back(at::make_generator<DeviceGenerator>(static_cast<c10::DeviceIndex>(i)));
    }
    return all;
  }();
  const auto at = static_cast<size_t>(index < 0 ? current_device() : index);
  TORCH_CHECK(at < generators->size(), "there is no device gapless:", at, "; there are ",
              generators->size());
  return (*generators)[at];
}

DeviceGenerator& as_ours(const at::Generator& generator) {
  TORCH_CHECK(generator.device().is_privateuseone(), "expected a generator of device gapless, got ",
              generator.device());
  return *static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl());
}

at::Generator cpu_generator(const RandomTicket& ticket, bool captured, const RunContext& context) {
  thread_local at::Generator engine = at::detail::createCPUGenerator(0);
  const uint64_t seed = captured ? context.rng_seed : ticket.seed;
  const uint64_t offset = captured ? context.rng_offset + ticket.offset : ticket.offset;
  engine.set_current_seed(mix(seed, offset));
  return engine;
}

}  // namespace gapless::torch_device
