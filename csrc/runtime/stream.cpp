#include "runtime/stream.h"

#include <pthread.h>

#include <chrono>
#include <string>

#include "runtime/device.h"
#include "runtime/graph.h"

namespace gapless {
namespace {

using std::chrono::milliseconds;

constexpr size_t kReportedKept = 64;
constexpr size_t kEndsKept = 1024;

std::atomic<void (*)()> g_thread_start_hook{nullptr};
thread_local int64_t t_step = -1;

}  // namespace

int64_t current_step() { return t_step; }
void set_current_step(int64_t step) { t_step = step; }
void set_thread_start_hook(void (*hook)()) { g_thread_start_hook = hook; }

std::string Failure::text() const {
  std::string text = name + " failed on gapless:" + std::to_string(device) + ", stream " +
                     std::to_string(stream) + ": " + message + "\n  submitted as work " +
                     std::to_string(work);
  if (step >= 0) text += " of step " + std::to_string(step);
  text += site.empty() ? "; GAPLESS_TRACE_SUBMIT=1 may name the Python line" : "\n  at " + site;
  if (!operands.empty()) text += "\n  operands: " + operands;
  if (skipped > 0) {
    text += "\n  " + std::to_string(skipped) +
            " later work(s) on the stream were not run, since they may depend on it";
  }
  return text;
}

Stream::Stream(const gapless_driver* driver, int device, int index, int priority)
    : driver_(driver), device_(device), index_(index), priority_(priority) {}

Stream::~Stream() { stop(0); }

uint64_t Stream::submit(std::unique_ptr<Work> work) {
  work->step = t_step;
  if (recorder::is_on() || driver_->work_begin) work->submit_ns = now_ns();
  std::unique_lock lock(queue_mutex_);
  if (capture_owner_) {
    work->captured = true;
    capture_owner_->works.push_back(std::move(work));
    return submitted_.load(std::memory_order_relaxed);
  }
  if (stopping_) return submitted_.load(std::memory_order_relaxed);
  if (!started_) {
    note_thread_started();
    thread_ = std::thread([this] { loop(); });
    started_ = true;
  }
  const uint64_t place = submitted_.load(std::memory_order_relaxed) + 1;
  work->id = place;
  Work* raw = work.release();
  if (tail_) {
    tail_->next = raw;
  } else {
    head_ = raw;
  }
  tail_ = raw;
  submitted_.store(place, std::memory_order_release);
  const bool wake = sleeping_;
  lock.unlock();
  if (wake) queue_ready_.notify_one();
  return place;
}

void Stream::loop() {
  const std::string name = "gapless:" + std::to_string(device_) + "/" + std::to_string(index_);
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  if (auto* hook = g_thread_start_hook.load()) hook();
  driver_->stream_enter(device_, index_, priority_);
  while (true) {
    Work* batch = nullptr;
    {
      std::unique_lock lock(queue_mutex_);
      sleeping_ = true;
      queue_ready_.wait(lock, [this] { return head_ != nullptr || stopping_; });
      sleeping_ = false;
      batch = std::exchange(head_, nullptr);
      tail_ = nullptr;
    }
    while (batch != nullptr) {
      Work* work = batch;
      batch = work->next;
      if (stopping_) {
        delete work;
      } else {
        run_one(work);
      }
    }
    if (stopping_) break;
  }
  driver_->stream_leave(device_, index_);
  std::lock_guard lock(wait_mutex_);
  ended_ = true;
  completed_changed_.notify_all();
}

void Stream::run_one(Work* work) {
  const uint64_t place = work->id;
  const bool skip = failed_.load(std::memory_order_acquire) ||
                    place <= skip_until_.load(std::memory_order_acquire);
  if (skip) {
    std::lock_guard lock(failure_mutex_);
    if (failure_) ++failure_->skipped;
  } else {
    const bool own_time = driver_->work_begin != nullptr;
    bool begun = false;
    gapless_work_times times{};
    auto failure_of = [](const char* message) {
      auto failure = std::make_shared<Failure>();
      failure->message = message;
      return failure;
    };
    try {
      const int64_t ready_ns = work->await();
      if (own_time) {
        begin(*work, ready_ns);
        begun = true;
      } else if (work->submit_ns) {
        times.start_ns = now_ns();
      }
      work->run(RunContext{device_, index_});
    } catch (const InheritedFailure& inherited) {
      fail(*work, std::make_shared<Failure>(*inherited.failure));
    } catch (const std::exception& error) {
      fail(*work, failure_of(error.what()));
    } catch (...) {
      fail(*work, failure_of("an exception of an unknown type"));
    }
    if (begun) {
      driver_->work_end(device_, index_, &times);
      std::lock_guard lock(ends_mutex_);
      ends_.resize(kEndsKept);
      ends_[place % kEndsKept] = {place, times.end_ns};
    } else if (times.start_ns || work->kind == WorkKind::kWait) {
      times.end_ns = now_ns();
    }
    work->ended(times.end_ns);
    if (times.start_ns && recorder::is_on()) {
      records_.add(Record{place, work->step, work->name, work->kind, work->submit_ns,
                          times.start_ns, times.end_ns});
    }
  }
  // Before the completion is published: whoever sees it may reuse what the work refers to.
  delete work;
  publish(place);
}

void Stream::begin(const Work& work, int64_t ready_ns) {
  const WorkCost cost = work.cost();
  const gapless_work info{work.name,      static_cast<int32_t>(work.kind),
                          cost.operators, work.submit_ns,
                          ready_ns,       cost.bytes,
                          cost.flops};
  driver_->work_begin(device_, index_, &info);
}

int64_t Stream::end_ns_of(uint64_t place) const {
  std::lock_guard lock(ends_mutex_);
  const End& end = ends_.empty() ? End{} : ends_[place % kEndsKept];
  return end.place == place ? end.end_ns : 0;
}

void Stream::fail(const Work& work, std::shared_ptr<Failure> failure) {
  failure->place = work.id;
  if (failure->work == 0) {  // not inherited from another stream
    failure->device = device_;
    failure->stream = index_;
    failure->work = work.id;
    failure->step = work.step;
  }
  if (failure->name.empty()) {
    failure->name = work.name;
    failure->operands = work.operands();
    failure->site = work.site;
  }
  std::lock_guard lock(failure_mutex_);
  failure_ = std::move(failure);
  ever_failed_.store(true, std::memory_order_release);
  failed_.store(true, std::memory_order_release);
}

void Stream::publish(uint64_t place) {
  // Sequentially consistent on both sides: either the waiter sees the completion, or we see it
  // wait.
  completed_.store(place, std::memory_order_seq_cst);
  if (place >= wake_at_.load(std::memory_order_seq_cst)) {
    std::lock_guard lock(wait_mutex_);
    wake_at_.store(UINT64_MAX, std::memory_order_seq_cst);
    completed_changed_.notify_all();
  }
}

void Stream::wait(uint64_t place) {
  if (done(place)) return;
  std::unique_lock lock(wait_mutex_);
  while (true) {
    if (place < wake_at_.load(std::memory_order_relaxed)) {
      wake_at_.store(place, std::memory_order_seq_cst);
    }
    if (completed_.load(std::memory_order_seq_cst) >= place || stopping_) return;
    completed_changed_.wait(lock);
  }
}

void Stream::wait_on_host(uint64_t place, void (*tick)()) {
  host_wait_.until([&] { return done(place) || stopping_.load(std::memory_order_relaxed); }, tick);
}

std::shared_ptr<const Failure> Stream::take_failure(uint64_t place) {
  if (!failed_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard queue_lock(queue_mutex_);
  std::lock_guard lock(failure_mutex_);
  if (!failure_ || failure_->place > place) return nullptr;
  skip_until_.store(submitted_.load(), std::memory_order_release);
  failed_.store(false, std::memory_order_release);
  if (reported_.size() == kReportedKept) reported_.pop_front();
  reported_.emplace_back(failure_, submitted_.load());
  return std::exchange(failure_, nullptr);
}

std::shared_ptr<const Failure> Stream::failure_at(uint64_t place) const {
  if (!ever_failed_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(failure_mutex_);
  if (failure_ && failure_->place <= place) return failure_;
  for (const auto& [failure, last] : reported_) {
    if (failure->place <= place && place <= last) return failure;
  }
  return nullptr;
}

void Stream::begin_capture(std::shared_ptr<GraphBody> body) {
  std::lock_guard lock(queue_mutex_);
  if (capture_owner_) {
    throw UsageError("a graph is already being captured on this stream; end that capture first");
  }
  capture_owner_ = std::move(body);
  capture_.store(capture_owner_.get(), std::memory_order_release);
}

std::shared_ptr<GraphBody> Stream::end_capture() {
  std::lock_guard lock(queue_mutex_);
  capture_.store(nullptr, std::memory_order_release);
  return std::exchange(capture_owner_, nullptr);
}

bool Stream::stop(int64_t timeout_ms) {
  {
    std::lock_guard lock(queue_mutex_);
    stopping_ = true;
    if (!started_) return true;
  }
  queue_ready_.notify_one();
  bool ended = false;
  {
    std::unique_lock lock(wait_mutex_);
    completed_changed_.notify_all();
    ended = completed_changed_.wait_for(lock, milliseconds(timeout_ms), [this] { return ended_; });
  }
  if (!thread_.joinable()) return ended;
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return ended;
}

}  // namespace gapless
