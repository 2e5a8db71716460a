#include "drivers/sim/model.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "drivers/settings.h"

namespace gapless::sim {
namespace {

constexpr int kMaxDevices = 64;

int64_t ns(double us) { return std::llround(us * 1e3); }

// Nanoseconds of a transfer; a speed of 0 stands for one that costs nothing.
int64_t transfer_ns(uint64_t bytes, double gb_per_s) {
  return gb_per_s > 0 ? std::llround(static_cast<double>(bytes) / gb_per_s) : 0;
}

// "aten::mm.out=20,graph replay=5000"
std::unordered_map<std::string, double> stated_times(const std::string& text) {
  std::unordered_map<std::string, double> times;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    const size_t equals = part.rfind('=');
    char* end = nullptr;
    const double us =
        equals == std::string::npos ? -1 : std::strtod(part.c_str() + equals + 1, &end);
    if (equals == std::string::npos || equals == 0 || *end || equals + 1 == part.size() ||
        !std::isfinite(us) || us < 0) {
      throw std::invalid_argument("GAPLESS_SIM_WORK_US=" + text + ": '" + part +
                                  "' is not NAME=MICROSECONDS, such as graph replay=5000");
    }
    times[part.substr(0, equals)] = us;
    at = comma + 1;
  }
  return times;
}

}  // namespace

Model Model::from_environment() {
  Model model;
  model.devices = static_cast<int>(settings::whole("GAPLESS_NUM_DEVICES", 1, 1, kMaxDevices));
  model.memory_bytes = settings::bytes("GAPLESS_SIM_MEMORY", 8ull << 30);
  model.launch_us = settings::number("GAPLESS_SIM_LAUNCH_US", 5);
  model.op_us = settings::number("GAPLESS_SIM_OP_US", 2);
  model.memory_gb_per_s = settings::number("GAPLESS_SIM_MEMORY_GBPS", 200);
  model.tflops = settings::number("GAPLESS_SIM_TFLOPS", 10);
  model.copy_latency_us = settings::number("GAPLESS_SIM_COPY_LATENCY_US", 10);
  model.copy_gb_per_s = settings::number("GAPLESS_SIM_COPY_GBPS", 12);
  model.peer_gb_per_s = settings::number("GAPLESS_SIM_PEER_GBPS", 50);
  if (const auto stated = settings::text("GAPLESS_SIM_WORK_US")) {
    model.work_us = stated_times(*stated);
  }
  if (const auto numerics = settings::text("GAPLESS_SIM_NUMERICS")) {
    if (*numerics != "exact" && *numerics != "none") {
      throw std::invalid_argument("GAPLESS_SIM_NUMERICS=" + *numerics +
                                  ": give exact (operators compute) or none (they only take time)");
    }
    model.exact_numerics = *numerics == "exact";
  }
  return model;
}

int64_t Model::work_ns(const gapless_work& work) const {
  if (!work_us.empty()) {
    if (const auto stated = work_us.find(work.name); stated != work_us.end()) {
      return ns(stated->second);
    }
  }
  if (work.operators == 0) return 0;
  const int64_t arithmetic = tflops > 0 ? std::llround(work.flops / (tflops * 1e3)) : 0;
  return ns(op_us * work.operators) +
         std::max(arithmetic, transfer_ns(work.bytes, memory_gb_per_s));
}

int64_t Model::copy_ns(uint64_t bytes) const {
  return ns(copy_latency_us) + transfer_ns(bytes, copy_gb_per_s);
}

int64_t Model::peer_copy_ns(uint64_t bytes) const {
  return ns(copy_latency_us) + transfer_ns(bytes, peer_gb_per_s);
}

}  // namespace gapless::sim
