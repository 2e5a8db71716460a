// The device's random numbers: a seed, and an offset that counts the operators that drew from it.
//
// Each random operator takes a ticket, in the order of submission, and its CPU kernel then draws
// from a fresh engine seeded by (seed, offset). So the numbers do not depend on the host's timing,
// the state is two words, and a graph's replay needs no more than the offset at which it starts.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include <mutex>

#include "runtime/work.h"

namespace gapless::torch_device {

struct RandomTicket {
  uint64_t seed = 0;
  uint64_t offset = 0;  // in a capture: from the start of the graph
};

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(c10::DeviceIndex index, uint64_t seed = c10::default_rng_seed_val);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type() { return c10::kPrivateUse1; }

  // Takes `count` offsets and returns the first.
  RandomTicket take(uint64_t count = 1);

 private:
  DeviceGenerator* clone_impl() const override;

  uint64_t seed_;
  uint64_t offset_ = 0;
  mutable std::mutex state_mutex_;
};

const at::Generator& default_generator(c10::DeviceIndex index);
DeviceGenerator& as_ours(const at::Generator& generator);

// The engine for one run of one operator, on the calling stream thread.
at::Generator cpu_generator(const RandomTicket& ticket, bool captured, const RunContext& context);

}  // namespace gapless::torch_device
