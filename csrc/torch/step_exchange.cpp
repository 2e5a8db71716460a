#include "torch/step_exchange.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/work.h"
#include "torch/errors.h"
#include "torch/futex.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

using Word = FutexWord;

constexpr uint64_t kPage = 4096;

uint64_t up_to(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

[[noreturn]] void refuse(const std::string& text) {
  translated([&]() { throw UsageError(text); });
  __builtin_unreachable();
}

}  // namespace

// The words of either side lie apart, so that they do not take a cache line from each other.
struct StepExchange::Control {
  alignas(64) Word bell;  // rung by the caller
  std::atomic<int64_t> posted;
  alignas(64) Word answered_bell;  // rung by workers
  Word reports;
};

struct StepExchange::Slot {
  alignas(64) Word answers;
  uint64_t input_stride;  // 0: one input for all
};

StepExchange::Places StepExchange::places(uint64_t workers, uint64_t slots, uint64_t input,
                                          uint64_t row) {
  Places at{};
  at.slots = sizeof(Control);
  at.calls = at.slots + slots * sizeof(Slot);
  at.inputs = up_to(at.calls + workers * sizeof(Word), kPage);
  at.results = up_to(at.inputs + slots * workers * input, kPage);
  at.end = up_to(at.results + slots * workers * row, kPage);
  return at;
}

uint64_t StepExchange::file_bytes(uint32_t workers, uint32_t slots, uint64_t input_bytes,
                                  uint64_t result_bytes) {
  return places(workers, slots, input_bytes, kRowHeader + result_bytes).end;
}

StepExchange::StepExchange(int file, uint32_t workers, uint32_t slots, uint64_t input_bytes,
                           uint64_t result_bytes)
    : workers_(workers),
      slots_(slots),
      input_bytes_(input_bytes),
      result_bytes_(result_bytes),
      at_(places(workers, slots, input_bytes, row_bytes())) {
  struct stat status {};
  if (fstat(file, &status) < 0 || static_cast<uint64_t>(status.st_size) < at_.end) {
    refuse("the exchange of " + std::to_string(workers) + " workers takes " +
           std::to_string(at_.end) + " bytes, and its file has " + std::to_string(status.st_size));
  }
  void* mapped = mmap(nullptr, at_.end, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    refuse("the exchange's " + std::to_string(at_.end) +
           " bytes cannot be mapped: " + std::strerror(errno));
  }
  memory_ = static_cast<uint8_t*>(mapped);
}

StepExchange::~StepExchange() { munmap(memory_, at_.end); }

StepExchange::Control& StepExchange::control() const {
  return *reinterpret_cast<Control*>(memory_);
}

StepExchange::Slot& StepExchange::slot(int64_t step) const {
  return reinterpret_cast<Slot*>(memory_ + at_.slots)[static_cast<uint64_t>(step) % slots_];
}

Word& StepExchange::calls(uint32_t rank) const {
  return reinterpret_cast<Word*>(memory_ + at_.calls)[rank];
}

uint8_t* StepExchange::row(uint32_t rank, int64_t step) const {
  const uint64_t number = static_cast<uint64_t>(step) % slots_ * workers_ + rank;
  return memory_ + at_.results + number * row_bytes();
}

uint8_t* StepExchange::inputs(int64_t step) const {
  return memory_ + at_.inputs + static_cast<uint64_t>(step) % slots_ * workers_ * input_bytes_;
}

uint8_t* StepExchange::next_inputs() const {
  return inputs(control().posted.load(std::memory_order_relaxed));
}

int64_t StepExchange::post(bool is_same_for_all) {
  const int64_t step = control().posted.load(std::memory_order_relaxed);
  Slot& own = slot(step);
  own.input_stride = is_same_for_all ? 0 : input_bytes_;
  own.answers.store(0, std::memory_order_relaxed);
  control().posted.store(step + 1, std::memory_order_release);
  futex_ring(control().bell);
  return step;
}

void StepExchange::call(const std::vector<uint32_t>& ranks) {
  for (const uint32_t rank : ranks) calls(rank).fetch_add(1, std::memory_order_release);
  futex_ring(control().bell);
}

StepExchange::Waited StepExchange::await(int64_t step, int64_t timeout_ms) const {
  const int64_t until_ns = now_ns() + timeout_ms * 1'000'000;
  while (true) {
    const uint32_t seen = control().answered_bell.load(std::memory_order_acquire);
    if (slot(step).answers.load(std::memory_order_acquire) == workers_) return Waited::kDone;
    if (control().reports.load(std::memory_order_acquire) > 0) return Waited::kTrouble;
    const int64_t left_ns = until_ns - now_ns();
    if (left_ns <= 0) return Waited::kTime;
    const timespec timeout{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    if (!futex_sleep(control().answered_bell, seen, &timeout)) check_signals();
  }
}

const uint8_t* StepExchange::rows(int64_t step) const { return row(0, step); }

uint32_t StepExchange::take(uint32_t rank, int64_t next, uint32_t* seen_calls) const {
  while (true) {
    const uint32_t seen = control().bell.load(std::memory_order_acquire);
    const uint32_t called = calls(rank).load(std::memory_order_acquire);
    if (control().posted.load(std::memory_order_acquire) > next) return kStep;
    if (called != *seen_calls) {
      ++*seen_calls;
      return kCall;
    }
    if (!futex_sleep(control().bell, seen, nullptr)) check_signals();
  }
}

const uint8_t* StepExchange::input(uint32_t rank, int64_t step) const {
  return inputs(step) + rank * slot(step).input_stride;
}

void StepExchange::answer(uint32_t rank, int64_t step, const void* result) {
  uint8_t* to = row(rank, step);
  if (result) std::memcpy(to + kRowHeader, result, result_bytes_);
  *reinterpret_cast<RowHeader*>(to) = {result ? kResult : kSkipped, rank, step, now_ns()};
  if (!result) return report();
  const uint32_t answers = slot(step).answers.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (answers == workers_) futex_ring(control().answered_bell);
}

void StepExchange::report() {
  control().reports.fetch_add(1, std::memory_order_release);
  futex_ring(control().answered_bell);
}

}  // namespace gapless::torch_device
