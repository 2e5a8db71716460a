#include "torch/distributed/stream_work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "runtime/device.h"
#include "torch/errors.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

constexpr auto kPoll = std::chrono::microseconds(200);

c10::DistBackendError dist_error(const std::string& text) {
  return {c10::SourceLocation{__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text};
}

class OnStream {
 public:
  explicit OnStream(Stream& stream) : before_(current_stream(stream.device())) {
    set_current_stream(stream);
  }
  ~OnStream() { set_current_stream(before_); }

 private:
  Stream& before_;
};

}  // namespace

StreamWork::StreamWork(int rank, c10d::OpType type, std::vector<EventMark> marks,
                       std::vector<at::Tensor> outputs, bool host_waits,
                       std::shared_ptr<Transfer> transfer)
    : Work(rank, type),
      marks_(std::move(marks)),
      outputs_(std::move(outputs)),
      host_waits_(host_waits),
      transfer_(std::move(transfer)) {}

bool StreamWork::isCompleted() {
  return std::all_of(marks_.begin(), marks_.end(), [](const auto& mark) { return query(mark); });
}

bool StreamWork::isSuccess() const { return !exception(); }

std::exception_ptr StreamWork::exception() const {
  for (const EventMark& mark : marks_) {
    if (!query(mark)) continue;
    if (auto failure = mark.stream->failure_at(mark.place, mark.failures_taken)) {
      return std::make_exception_ptr(dist_error(failure->text()));
    }
  }
  return nullptr;
}

void StreamWork::synchronize() {
  translated([&] {
    for (const EventMark& mark : marks_) submit_wait(current_stream(mark.stream->device()), mark);
  });
}

bool StreamWork::wait(std::chrono::milliseconds timeout) {
  synchronize();
  if (host_waits_ && timeout <= kNoTimeout) {
    for (const EventMark& mark : marks_) torch_device::synchronize(mark);
  }
  if (timeout <= kNoTimeout) return true;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!isCompleted()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      throw dist_error(
          c10d::opTypeToString(opType_) + " did not end within " + std::to_string(timeout.count()) +
          " ms, the timeout that wait() was given; it goes on, and ends by the process "
          "group's own timeout");
    }
    std::this_thread::sleep_for(kPoll);
  }
  if (auto error = exception()) std::rethrow_exception(error);
  return true;
}

int StreamWork::sourceRank() const {
  for (const EventMark& mark : marks_) torch_device::synchronize(mark);
  TORCH_CHECK(transfer_, "only a receive from any source knows a source rank");
  return transfer_->source();
}

c10::intrusive_ptr<c10::ivalue::Future> StreamWork::getFuture() {
  std::lock_guard lock(mutex_);
  if (future_) return future_;
  Stream& last = *marks_.back().stream;
  const c10::Device device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(last.device()));
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     std::vector<c10::Device>{device});
  // Complete at once: who waits for it makes a stream wait for what was recorded on this one.
  const OnStream here(last);
  for (const EventMark& mark : marks_) submit_wait(last, mark);
  future_->markCompleted(c10::IValue(outputs_));
  return future_;
}

}  // namespace gapless::torch_device
