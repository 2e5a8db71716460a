#include "torch/step_port.h"

#include <cstring>
#include <string>
#include <utility>

#include "runtime/device.h"
#include "torch/errors.h"
#include "torch/futex.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  translated([&]() { throw UsageError(text); });
  __builtin_unreachable();
}

}  // namespace

// Answers when it is destroyed, which happens in the stream's order whatever became of the work: a
// step that was skipped is told, rather than waited for in vain.
class StepPort::Answer final : public Work {
 public:
  Answer(std::shared_ptr<StepExchange> exchange, std::shared_ptr<Progress> progress, uint32_t rank,
         int64_t step, const void* result)
      : Work(WorkKind::kWait, "answer a step"),
        exchange_(std::move(exchange)),
        progress_(std::move(progress)),
        rank_(rank),
        step_(step),
        result_(result) {}

  ~Answer() override {
    exchange_->answer(rank_, step_, ran_ ? result_ : nullptr);
    // The orders are sequentially consistent: either the waiter sees the new number before it
    // sleeps, or this sees the waiter.
    progress_->ended.fetch_add(1);
    if (progress_->is_awaited.load()) futex_wake(progress_->ended);
  }

  void run(const RunContext&) override { ran_ = true; }

 private:
  const std::shared_ptr<StepExchange> exchange_;
  const std::shared_ptr<Progress> progress_;
  const uint32_t rank_;
  const int64_t step_;
  const void* const result_;
  bool ran_ = false;
};

StepPort::StepPort(std::shared_ptr<StepExchange> exchange, uint32_t rank, int device)
    : exchange_(std::move(exchange)), rank_(rank), device_(device) {
  if (rank >= exchange_->workers()) {
    refuse("rank " + std::to_string(rank) + " is none of the exchange's " +
           std::to_string(exchange_->workers()) + " workers");
  }
}

void StepPort::add_slot(Graph* graph, void* input, uint64_t input_bytes, const void* result,
                        uint64_t result_bytes) {
  if (input_bytes != exchange_->input_bytes() || result_bytes != exchange_->result_bytes()) {
    refuse("a slot of " + std::to_string(input_bytes) + " and " + std::to_string(result_bytes) +
           " bytes does not suit an exchange of " + std::to_string(exchange_->input_bytes()) +
           " and " + std::to_string(exchange_->result_bytes()));
  }
  slots_.push_back({graph, input, result});
}

void StepPort::await_slot() {
  const auto in_flight = [this](uint32_t ended) { return static_cast<uint32_t>(next_) - ended; };
  if (in_flight(progress_->ended.load()) < slots_.size()) return;
  progress_->is_awaited.store(true);
  while (true) {
    const uint32_t ended = progress_->ended.load();
    if (in_flight(ended) < slots_.size()) break;
    if (!futex_sleep(progress_->ended, ended, nullptr)) check_signals();
  }
  progress_->is_awaited.store(false);
}

uint32_t StepPort::receive() {
  await_slot();
  const uint32_t kind = exchange_->take(rank_, next_, &calls_);
  if (kind != StepExchange::kStep) return kind;
  const Slot& slot = slots_[static_cast<size_t>(next_) % slots_.size()];
  std::memcpy(slot.input, exchange_->input(rank_, next_), exchange_->input_bytes());
  is_filled_ = true;
  return kind;
}

int64_t StepPort::submit() {
  if (!std::exchange(is_filled_, false)) {
    refuse("no input was received; call receive() before each submit()");
  }
  const int64_t step = next_++;
  const int64_t index = step % static_cast<int64_t>(slots_.size());
  const Slot& slot = slots_[static_cast<size_t>(index)];
  const int64_t step_before = current_step();
  set_current_step(step);
  slot.graph->replay();
  current_stream(device_).submit(
      std::make_unique<Answer>(exchange_, progress_, rank_, step, slot.result));
  set_current_step(step_before);
  return index;
}

}  // namespace gapless::torch_device
