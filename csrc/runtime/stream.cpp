#include "runtime/stream.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "runtime/device.h"
#include "runtime/graph.h"
#include "runtime/watchdog.h"

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

Stream::Stream(const gapless_driver* driver, int device, int index, int priority)
    : driver_(driver), device_(device), index_(index), priority_(priority) {}

Stream::~Stream() { stop(0); }

uint64_t Stream::submit(std::unique_ptr<Work> work) {
  work->step = t_step;
  if (recorder::is_on() || driver_->work_begin) work->submit_ns = now_ns();
  std::unique_lock lock(queue_mutex_);
  if (capture_owner_) {
    work->captured = true;
    ++captured_;
    capture_owner_->works.push_back(std::move(work));
    return submitted_.load(std::memory_order_relaxed);
  }
  if (stopping_) return submitted_.load(std::memory_order_relaxed);
  if (!started_) {
    note_thread_started();
    watchdog::start();
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
    const bool watched = watchdog::is_on();
    if (watched) {
      running_since_ns_.store(now_ns(), std::memory_order_relaxed);
      running_.store(work, std::memory_order_release);
    }
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
    if (watched) await_inspection(work);
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
  if (failure->work != 0) {  // inherited from another stream
    failure->skipped = 0;
    failure->inherited_by =
        "gapless:" + std::to_string(device_) + ", stream " + std::to_string(index_);
  } else {
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

void Stream::wait_on_host(uint64_t place, void (*tick)(), const char* site) {
  struct Listed {
    Stream* stream = nullptr;
    HostWaiter waiter;
    ~Listed() {
      if (!stream) return;
      std::lock_guard lock(stream->waiters_mutex_);
      auto& all = stream->waiters_;
      auto same = [&](const HostWaiter& other) {
        return other.thread == waiter.thread && other.since_ns == waiter.since_ns;
      };
      all.erase(std::find_if(all.begin(), all.end(), same));
    }
  } listed;
  if (watchdog::is_on() && !done(place)) {
    listed.waiter = {gettid(), place, now_ns(), site};
    std::lock_guard lock(waiters_mutex_);
    waiters_.push_back(listed.waiter);
    listed.stream = this;
  }
  host_wait_.until([&] { return done(place) || stopping_.load(std::memory_order_relaxed); }, tick);
}

std::vector<HostWaiter> Stream::host_waiters() const {
  std::lock_guard lock(waiters_mutex_);
  return waiters_;
}

// A hazard pointer: either the watchdog sees that the work has ended, or we see that it looks.
bool Stream::inspect(const std::function<void(const Work&, int64_t)>& look) {
  const Work* work = running_.load(std::memory_order_seq_cst);
  if (!work) return false;
  inspected_.store(work, std::memory_order_seq_cst);
  const bool runs = running_.load(std::memory_order_seq_cst) == work;
  if (runs) look(*work, running_since_ns_.load(std::memory_order_relaxed));
  inspected_.store(nullptr, std::memory_order_release);
  return runs;
}

void Stream::await_inspection(const Work* work) {
  running_.store(nullptr, std::memory_order_seq_cst);
  while (inspected_.load(std::memory_order_seq_cst) == work) std::this_thread::yield();
}

std::shared_ptr<const Failure> Stream::take_failure(uint64_t place) {
  if (!failed_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard queue_lock(queue_mutex_);
  std::lock_guard lock(failure_mutex_);
  if (!failure_ || failure_->place > place) return nullptr;
  skip_until_.store(submitted_.load(), std::memory_order_release);
  failed_.store(false, std::memory_order_release);
  if (reported_.size() == kReportedKept) reported_.pop_front();
  reported_.push_back({failure_, submitted_.load(), failures_taken_.load() + 1});
  failures_taken_.fetch_add(1, std::memory_order_release);
  failure_->reported->store(true);
  return std::exchange(failure_, nullptr);
}

std::shared_ptr<const Failure> Stream::failure_at(uint64_t place, uint64_t taken) const {
  if (!ever_failed_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(failure_mutex_);
  if (failure_ && failure_->place <= place) return failure_;
  for (const auto& [failure, last, number] : reported_) {
    if (number > taken && failure->place <= place && place <= last) return failure;
  }
  return nullptr;
}

std::shared_ptr<const Failure> Stream::untaken_failure() const {
  std::lock_guard lock(failure_mutex_);
  return failure_;
}

void Stream::begin_capture(std::shared_ptr<GraphBody> body) {
  std::lock_guard lock(queue_mutex_);
  if (capture_owner_) {
    throw UsageError("a graph is already being captured on this stream; end that capture first");
  }
  capture_owner_ = std::move(body);
  captured_ = 0;
  capture_.store(capture_owner_.get(), std::memory_order_release);
}

std::shared_ptr<GraphBody> Stream::end_capture() {
  std::lock_guard lock(queue_mutex_);
  capture_.store(nullptr, std::memory_order_release);
  return std::exchange(capture_owner_, nullptr);
}

std::pair<std::shared_ptr<GraphBody>, uint64_t> Stream::capture_mark() const {
  std::lock_guard lock(queue_mutex_);
  return {capture_owner_, captured_};
}

void Stream::note_captured() {
  std::lock_guard lock(queue_mutex_);
  ++captured_;
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
