#include "runtime/event.h"

#include <tuple>
#include <utility>

#include "runtime/graph.h"

namespace gapless {
namespace {

class TimestampWork final : public Work {
 public:
  explicit TimestampWork(std::shared_ptr<std::atomic<int64_t>> reached_ns)
      : Work(WorkKind::kWait, "event record"), reached_ns_(std::move(reached_ns)) {}

  void run(const RunContext&) override {}
  void ended(int64_t end_ns) override { reached_ns_->store(end_ns, std::memory_order_release); }

 private:
  std::shared_ptr<std::atomic<int64_t>> reached_ns_;
};

class WaitWork final : public Work {
 public:
  explicit WaitWork(EventMark mark) : Work(WorkKind::kWait, "event wait"), mark_(std::move(mark)) {}

  void run(const RunContext&) override {}

  int64_t await() override {
    mark_.stream->wait(mark_.place);
    if (auto failure = mark_.stream->failure_at(mark_.place, mark_.failures_taken)) {
      throw InheritedFailure{std::move(failure)};
    }
    return mark_.stream->end_ns_of(mark_.place);
  }

  Awaited awaited() const override { return {mark_.stream, mark_.place}; }

 private:
  EventMark mark_;
};

}  // namespace

void Event::record(Stream& stream) {
  EventMark mark;
  mark.stream = &stream;
  mark.failures_taken = stream.failures_taken();
  mark.in_capture = stream.capturing() != nullptr;
  if (timing_) {
    mark.reached_ns = std::make_shared<std::atomic<int64_t>>(0);
    mark.place = stream.submit(std::make_unique<TimestampWork>(mark.reached_ns));
  } else {
    mark.place = stream.submitted();
  }
  if (mark.in_capture) std::tie(mark.capture, mark.captured) = stream.capture_mark();
  std::lock_guard lock(mutex_);
  mark_ = std::move(mark);
}

EventMark Event::mark() const {
  std::lock_guard lock(mutex_);
  return mark_;
}

bool query(const EventMark& mark) { return !mark.stream || mark.stream->done(mark.place); }

void submit_wait(Stream& stream, const EventMark& mark, const char* site) {
  // A stream is always behind its own marks.
  if (!mark.stream || mark.stream == &stream) return;
  if (mark.in_capture) {
    take_part(stream, *mark.stream, mark.capture.lock(), mark.captured);
    return;
  }
  if (stream.capturing()) {
    throw UsageError(
        "this event was recorded outside the capture that the stream is in, where it cannot be "
        "waited for: a replay would not wait again. Wait before the capture begins");
  }
  if (query(mark) && !mark.stream->failure_at(mark.place, mark.failures_taken)) return;
  auto work = std::make_unique<WaitWork>(mark);
  work->site = site;
  stream.submit(std::move(work));
}

double elapsed_ms(const EventMark& start, const EventMark& end) {
  if (!start.reached_ns || !end.reached_ns) {
    throw UsageError("elapsed_time needs two recorded events made with enable_timing=True");
  }
  const int64_t start_ns = start.reached_ns->load(std::memory_order_acquire);
  const int64_t end_ns = end.reached_ns->load(std::memory_order_acquire);
  if (start_ns == 0 || end_ns == 0) {
    throw UsageError("elapsed_time needs both events reached; synchronize them first");
  }
  return static_cast<double>(end_ns - start_ns) / 1e6;
}

}  // namespace gapless
