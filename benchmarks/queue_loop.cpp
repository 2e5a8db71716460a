// The queue of the runtime without PyTorch: prints one line per round, in microseconds.
//
//   queue_loop ROUNDS
//   -> empty work, replay of 200 works, time of a work on the device with and without the recorder

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "runtime/device.h"
#include "runtime/graph.h"
#include "runtime/recorder.h"

namespace {

using namespace gapless;

constexpr int kWorks = 1000;
constexpr int kReplays = 100;
constexpr int kReplayedWorks = 200;
constexpr int64_t kBusyNs = 20'000;  // as long as a small operator

class Empty final : public Work {
 public:
  Empty() : Work(WorkKind::kOp, "empty") {}
  void run(const RunContext&) override {}
};

class Busy final : public Work {
 public:
  explicit Busy(int64_t ns) : Work(WorkKind::kOp, "busy"), ns_(ns) {}
  void run(const RunContext&) override {
    const int64_t until = now_ns() + ns_;
    while (now_ns() < until) {
    }
  }

 private:
  const int64_t ns_;
};

template <typename F>
double us_per_call(int calls, F&& call) {
  const int64_t start = now_ns();
  for (int i = 0; i < calls; ++i) call();
  return static_cast<double>(now_ns() - start) / 1e3 / calls;
}

// Submitting while the device is busy with something that outlasts it.
template <typename F>
double submit_us(Stream& stream, int calls, F&& call) {
  stream.submit(std::make_unique<Busy>(5'000'000));
  const double us = us_per_call(calls, call);
  stream.wait_on_host(stream.submitted());
  return us;
}

double device_us_per_work(Stream& stream) {
  return us_per_call(1,
                     [&] {
                       for (int i = 0; i < kWorks; ++i)
                         stream.submit(std::make_unique<Busy>(kBusyNs));
                       stream.wait(stream.submitted());
                     }) /
         kWorks;
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 20;
  Stream& stream = device(0).default_stream();
  auto body = std::make_shared<GraphBody>();
  for (int i = 0; i < kReplayedWorks; ++i) body->works.push_back(std::make_unique<Empty>());
  for (int round = 0; round < rounds; ++round) {
    const double empty =
        submit_us(stream, kWorks, [&] { stream.submit(std::make_unique<Empty>()); });
    const double replay = submit_us(stream, kReplays, [&] { submit_replay(stream, body, {}, ""); });
    const double off = device_us_per_work(stream);
    recorder::start(kWorks);
    const double on = device_us_per_work(stream);
    recorder::stop();
    std::printf("%.4f %.4f %.4f %.4f\n", empty, replay, off, on);
  }
  shutdown(1000);
}
